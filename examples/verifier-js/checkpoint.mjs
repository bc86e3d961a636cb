// Checkpoints of the log (C2SP signed notes) and the cosignatures of witnesses on them.

import { keyHash, verifies } from "./keys.mjs";
import { decodeBase64 } from "./members.mjs";
import { Rejected, require } from "./rejected.mjs";

const NAME = /^[^+ \t\n\v\f\r]+$/;
const SIZE = /^(?:0|[1-9][0-9]{0,14})$/;
const LOG_KEY = 0x01;
const WITNESS_KEY = 0x04;
const MAX_TIME = 2n ** 37n;

/**
 * Read a checkpoint and check every signature on it.
 * Returns {origin, size, root, key, cosignatures}, where cosignatures maps keys of witnesses to times in microseconds.
 */
export function readCheckpoint(note, keys, witnessKeys) {
  const witnesses = witnessKeys.map(readWitness);
  const lines = note.split("\n");
  require(lines.length >= 6 && lines[3] === "" && lines.at(-1) === "", "The checkpoint is not a signed note");
  const [origin, size, root] = lines;
  require(NAME.test(origin), "The checkpoint has no name of a log");
  require(SIZE.test(size), "The size of the checkpoint is not well-formed");
  const checkpoint = { origin, size: Number(size), root: decodeBase64(root, "The root of the checkpoint") };
  require(checkpoint.root.length === 32, "The root of the checkpoint is not a hash");
  const signedText = Buffer.from(`${origin}\n${size}\n${root}\n`);
  const signatures = lines.slice(4, -1).map(readSignature);
  checkpoint.key = checkLogSignature(signedText, origin, signatures, keys);
  checkpoint.cosignatures = checkCosignatures(signedText, origin, signatures, witnesses);
  return checkpoint;
}

/** Parse the key of a witness, NAME+HASH+KEY. */
export function readWitness(vkey) {
  const [, name, hash, encoded] = /^([^+]*)\+([0-9a-f]{8})\+(.*)$/s.exec(vkey) ?? [];
  require(encoded !== undefined && NAME.test(name), "The key of a witness is not NAME+HASH+KEY");
  const bytes = decodeBase64(encoded, "The key of a witness");
  require(bytes.length === 33 && bytes[0] === WITNESS_KEY, "The key of a witness is not for cosignatures");
  const raw = bytes.subarray(1);
  require(keyHash(name, WITNESS_KEY, raw).toString("hex") === hash, "The key of a witness has another hash");
  return { vkey, name, hash, raw };
}

function readSignature(line) {
  const [, name, encoded] = /^\u2014 ([^ ]+) ([^ ]+)$/s.exec(line) ?? [];
  require(encoded !== undefined && NAME.test(name), "A signature of the checkpoint is not well-formed");
  const bytes = decodeBase64(encoded, "A signature of the checkpoint");
  require(bytes.length > 0, "A signature of the checkpoint is empty");
  return { name, hash: bytes.subarray(0, 4), bytes: bytes.subarray(4) };
}

function checkLogSignature(signedText, origin, signatures, keys) {
  const byLog = signatures.filter((signature) => signature.name === origin);
  require(byLog.length === 1, "The checkpoint has not exactly one signature by the log");
  const [signature] = byLog;
  const candidates = keys.filter((key) => keyHash(origin, LOG_KEY, key.raw).equals(signature.hash));
  const key = candidates.find((candidate) => verifies(candidate.raw, signedText, signature.bytes));
  require(key !== undefined, "The log's signature of the checkpoint does not match a key of the keys file");
  require(key.use !== "statements", "The key of the checkpoint is not for the log");
  return key;
}

function checkCosignatures(signedText, origin, signatures, witnesses) {
  const times = new Map();
  for (const signature of signatures.filter(({ name }) => name !== origin)) {
    const { vkey, time } = checkCosignature(signedText, signature, witnesses);
    require(!times.has(vkey), "A witness signed twice");
    times.set(vkey, time);
  }
  return times;
}

function checkCosignature(signedText, signature, witnesses) {
  const hash = signature.hash.toString("hex");
  const witness = witnesses.find((candidate) => candidate.name === signature.name && candidate.hash === hash);
  if (witness === undefined) throw new Rejected("A cosignature is by an unknown witness");
  require(signature.bytes.length === 72, "A cosignature has another length");
  const seconds = signature.bytes.readBigUInt64BE();
  require(seconds < MAX_TIME, "The time of a cosignature is too large");
  const message = Buffer.concat([Buffer.from(`cosignature/v1\ntime ${seconds}\n`), signedText]);
  require(verifies(witness.raw, message, signature.bytes.subarray(8)), "A cosignature does not match");
  return { vkey: witness.vkey, time: seconds * 1_000_000n };
}
