// A bundle: envelope and place in the log, verified with the keys of the service.

import { readCheckpoint } from "./checkpoint.mjs";
import { parseObject, writeCanonical } from "./json.mjs";
import { readKeys, verifies } from "./keys.mjs";
import * as read from "./members.mjs";
import { checkConsistency, checkInclusion, leafHash } from "./merkle.mjs";
import { require } from "./rejected.mjs";
import { readStatement } from "./statement.mjs";

/** Limits of the files. */
export const MAX_BYTES = { bundle: 2 ** 26, keys: 2 ** 20, later: 2 ** 20 };

const PAYLOAD_TYPE = "application/vnd.in-toto+json";
const NAME_NOT_COMPARED = "The name of the log: neither the keys nor the caller gave one to compare with.";

/**
 * Verify a bundle; throws Rejected if a rule is broken.
 * The files are {bundle, keys, later, posteriorDigest}, as bytes; the last two may be null.
 * Returns {kind, predicate, notProved, missing}: missing says which evidence is missing, or is null.
 */
export function verifyBundle(files, { origin = null, witnesses = [] } = {}) {
  require(files.keys.length <= MAX_BYTES.keys, "The keys file is larger than 1 MiB");
  const trusted = readKeys(files.keys);
  const name = expectedName(trusted.origin, origin);
  const bundle = openBundle(files.bundle);
  const { key, statement } = openEnvelope(read.object(bundle, "envelope"), trusted.keys);
  checkName(name, statement);
  checkEnd(key, statement.signedAt);
  checkPosterior(files.posteriorDigest, statement);
  const expected = { ...trusted, name, required: witnesses };
  const missing = read.has(bundle, "log")
    ? verifyPlace(read.object(bundle, "log"), files.later, key, statement, expected)
    : describeWait(statement);
  const notProved = name === null ? [...statement.notProved, NAME_NOT_COMPARED] : statement.notProved;
  return { kind: statement.kind.name, predicate: statement.predicate, notProved, missing };
}

/** Check the place in the log and the later proof. Returns which evidence is missing, or null. */
function verifyPlace(log, laterProof, key, statement, expected) {
  const { date, checkpoint } = readPlace(log, statement, expected);
  const later = laterProof === null ? null : readLater(laterProof, checkpoint, expected);
  checkEnd(key, date);
  checkEnd(checkpoint.key, date);
  return isConfirmed(key, checkpoint, later) ? null : "A key was revoked, and nothing confirms the date";
}

function expectedName(listed, given) {
  require(listed === null || given === null || listed === given, "The keys are those of another log");
  return listed ?? given;
}

function openBundle(bytes) {
  require(bytes.length <= MAX_BYTES.bundle, "The bundle is larger than 64 MiB");
  const bundle = parseObject(bytes, "The bundle");
  const optional = read.has(bundle, "log") ? ["log"] : [];
  read.requireExactly(bundle, ["envelope", "format", ...optional], "The bundle");
  require(read.text(bundle, "format") === "lethe-bundle-v1", "The bundle is of another format");
  require(Buffer.from(writeCanonical(bundle)).equals(bytes), "The bundle is not canonical JSON");
  return bundle;
}

/** Check the signature of the envelope, then the statement in it. */
function openEnvelope(envelope, keys) {
  read.requireExactly(envelope, ["payload", "payloadType", "signatures"], "The envelope");
  require(read.text(envelope, "payloadType") === PAYLOAD_TYPE, "The payload is of another type");
  const payload = read.decodeBase64(read.text(envelope, "payload"), "The payload");
  const signatures = read.objects(envelope, "signatures");
  require(signatures.length === 1, "The envelope has not exactly one signature");
  read.requireExactly(signatures[0], ["keyid", "sig"], "The signature");
  const keyid = read.text(signatures[0], "keyid");
  const key = keys.find((candidate) => candidate.id === keyid);
  require(key !== undefined, "The statement is signed by a key that is not in the keys file");
  require(key.use !== "log", "The key of the envelope is not for statements");
  const signature = read.decodeBase64(read.text(signatures[0], "sig"), "The signature");
  const encoded = Buffer.concat([Buffer.from(`DSSEv1 28 ${PAYLOAD_TYPE} ${payload.length} `), payload]);
  require(verifies(key.raw, encoded, signature), "The signature does not match");
  return { key, statement: readStatement(payload) };
}

/** Reject a name of the log in the statement that is not the expected one. */
function checkName(name, { predicate }) {
  if (name === null || !read.has(predicate, "log")) return;
  require(predicate.log.origin === name, "The statement belongs to another log");
}

/** Check the entry, the checkpoint and the way from one to the other: {date of the entry, checkpoint}. */
function readPlace(log, statement, { keys, name, required, witnesses }) {
  read.requireExactly(log, ["checkpoint", "entry", "index", "proof"], "The place in the log");
  const leaf = Buffer.from(read.text(log, "entry"));
  const date = checkEntry(leaf, statement);
  const checkpoint = readCheckpoint(read.text(log, "checkpoint"), keys, [...witnesses, ...required]);
  require(name === null || checkpoint.origin === name, "The checkpoint is of another log");
  const { predicate } = statement;
  const agrees = !read.has(predicate, "log") || predicate.log.origin === checkpoint.origin;
  require(agrees, "Statement and checkpoint name different logs");
  const haveCosigned = required.every((vkey) => checkpoint.cosignatures.has(vkey));
  require(haveCosigned, "A required witness has not cosigned the checkpoint");
  const proof = read.hashes(log, "proof");
  checkInclusion(read.wholeNumber(log, "index"), leaf, proof, checkpoint.size, checkpoint.root);
  return { date, checkpoint };
}

/** Reject unless the entry names the statement (or the receipt names the entry). Returns the date of the entry. */
function checkEntry(leaf, { kind, predicate, digest, signedAt }) {
  const entry = parseObject(leaf, "The entry of the log");
  require(read.text(entry, "action") === kind.action, "The entry is of another action");
  require(read.text(entry, "concerns") === predicate[kind.concerns], "The entry concerns something else");
  const details = read.object(entry, "details");
  const date = read.time(entry, "at");
  require(date >= signedAt, "The entry is dated before the statement");
  if (kind.name === "receipt") {
    require(leafHash(leaf).equals(read.hash(predicate.log, "leaf")), "The entry is not the one that was promised");
    const latest = signedAt + BigInt(predicate.log.within_seconds) * 1_000_000n;
    require(date <= latest, "The entry is dated later than promised");
  } else {
    require(read.text(details, "statement") === digest.toString("hex"), "The entry is of another statement");
  }
  return date;
}

function readLater(bytes, earlier, { keys, required, witnesses }) {
  require(bytes.length <= MAX_BYTES.later, "The later proof is larger than 1 MiB");
  const content = parseObject(bytes, "The later proof");
  const checkpoint = readCheckpoint(read.text(content, "checkpoint"), keys, [...witnesses, ...required]);
  require(checkpoint.origin === earlier.origin, "The later checkpoint is of another log");
  require(checkpoint.size >= earlier.size, "The later checkpoint is smaller");
  checkConsistency(earlier, checkpoint, read.hashes(content, "proof"));
  return checkpoint;
}

/** Reject a date that is not before the end of the key. */
function checkEnd(key, date) {
  const ends = [key.retiredAt, key.revokedAt].filter((end) => end !== null);
  require(ends.every((end) => date < end), "A date is not before the end of its key");
}

/** Whether no key was revoked, or somebody without that key confirms that the entry existed before. */
function isConfirmed(key, checkpoint, later) {
  const revocations = [key.revokedAt, checkpoint.key.revokedAt].filter((date) => date !== null);
  if (revocations.length === 0) return true;
  if (later !== null && later.key.revokedAt === null) return true;
  const times = [...checkpoint.cosignatures.values(), ...(later?.cosignatures.values() ?? [])];
  return times.some((time) => revocations.every((revocation) => time < revocation));
}

function checkPosterior(digest, { subjects }) {
  if (digest === null) return;
  require(digest.equals(subjects.at(-1)), "The model file is not the one that the statement names");
}

/** What is missing without a place in the log; only some kinds may lack it. */
function describeWait({ kind, predicate, signedAt }) {
  require(kind.mayLackLog, `A ${kind.name} without its place in the log`);
  if (kind.name !== "receipt") return "It has no place in the log yet: download it again";
  const deadline = signedAt + BigInt(predicate.log.within_seconds) * 1_000_000n;
  const isOverdue = BigInt(Date.now()) * 1000n > deadline;
  return isOverdue
    ? "It has no place in the log, though the promised time has passed: download it again, and keep this receipt"
    : "It has no place in the log yet: download it again after the promised time";
}
