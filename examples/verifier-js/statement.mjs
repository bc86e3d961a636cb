// The statement: its kind, and the rules of each kind.

import { isObject, parseObject } from "./json.mjs";
import * as read from "./members.mjs";
import { checkMultiProof, sha256 } from "./merkle.mjs";
import { require } from "./rejected.mjs";

const LEVELS = ["estimated", "proved", "retrained"]; // from the weakest to the strongest
const REFERENCES = ["stored draws", "posterior"]; // of sample sets, likewise

export const KINDS = {
  "urn:lethe:receipt:v1": {
    name: "receipt",
    signedAt: "received_at",
    action: "deletion.received",
    concerns: "deletion",
    mayLackLog: true,
    check: checkReceipt,
  },
  "urn:lethe:absence:v1": {
    name: "certificate of absence",
    signedAt: "issued_at",
    action: "absence.certified",
    concerns: "deletion",
    mayLackLog: true,
    check: checkAbsence,
  },
  "urn:lethe:certificate:v1": {
    name: "certificate",
    signedAt: "issued_at",
    action: "certificate.issued",
    concerns: "certificate",
    mayLackLog: false,
    check: checkCertificate,
  },
  "urn:lethe:destruction:v1": {
    name: "certificate of destruction",
    signedAt: "issued_at",
    action: "certificate.issued",
    concerns: "certificate",
    mayLackLog: false,
    check: checkDestruction,
  },
};

/** Parse a payload and check it: {kind, predicate, digests of the subjects, digest of the payload, time of signing}. */
export function readStatement(payload) {
  const content = parseObject(payload, "The statement");
  require(read.text(content, "_type") === "https://in-toto.io/Statement/v1", "The statement is of another type");
  const predicateType = read.text(content, "predicateType");
  require(Object.hasOwn(KINDS, predicateType), "The kind of the statement is unknown");
  const kind = KINDS[predicateType];
  const predicate = read.object(content, "predicate");
  const subjects = read.objects(content, "subject").map(readDigest);
  checkCommonMembers(predicate);
  kind.check(predicate, subjects);
  const signedAt = read.time(predicate, kind.signedAt);
  return { kind, predicate, subjects, digest: sha256(payload), signedAt, notProved: notProved(predicate) };
}

function readDigest(subject) {
  return read.hash(read.object(subject, "digest"), "sha256");
}

function checkCommonMembers(predicate) {
  if (read.has(predicate, "log")) read.text(read.object(predicate, "log"), "origin");
  if (!read.has(predicate, "replaces")) return;
  const replaced = read.object(predicate, "replaces");
  read.text(replaced, "certificate");
  read.hash(replaced, "statement");
  read.text(replaced, "reason");
}

function notProved(predicate) {
  const bound = isObject(predicate.bound) ? predicate.bound : {};
  return [predicate, bound].flatMap((part) => (read.has(part, "not_proved") ? read.texts(part, "not_proved") : []));
}

function checkReceipt(predicate, subjects) {
  checkRequest(predicate, subjects);
  const promise = read.object(predicate, "log");
  read.hash(promise, "leaf");
  read.wholeNumber(promise, "within_seconds");
}

function checkAbsence(predicate, subjects) {
  checkRequest(predicate, subjects);
  checkDates(predicate);
  read.wholeNumber(predicate, "models_in_store");
}

function checkRequest(predicate, subjects) {
  read.text(predicate, "deletion");
  read.time(predicate, "received_at");
  const commitments = read.has(predicate, "subjects") ? read.hashes(predicate, "subjects") : [];
  const listed = commitments.map((commitment) => commitment.toString("hex")).join("\n");
  const matches = subjects.length === 1 && subjects[0].equals(sha256(listed));
  require(matches, "The subject is not the digest of the subjects of the request");
}

function checkDates(predicate) {
  const holds = read.time(predicate, "issued_at") >= read.time(predicate, "received_at");
  require(holds, "issued_at is before received_at");
}

function checkCertificate(predicate, subjects) {
  require(subjects.length === 2, "A certificate has two subjects");
  checkNames(predicate);
  const { before, after, forgotten } = readRecords(predicate);
  const addUp = before > 0 && after > 0 && forgotten > 0 && before - after === forgotten;
  require(addUp, "The records do not add up");
  checkAbsent(checkPresence(predicate, before), predicate, after);
  checkBound(predicate);
  if (!read.has(predicate, "erasure")) return;
  const { dataset } = predicate;
  const filesBefore = [subjects[0], read.hash(read.object(dataset, "before"), "digest")];
  const filesAfter = [subjects[1], read.hash(read.object(dataset, "after"), "digest")];
  checkErasure(predicate, filesBefore, filesAfter);
}

function checkDestruction(predicate, subjects) {
  require(subjects.length === 1, "A certificate of destruction has one subject");
  checkNames(predicate);
  const { before, after, forgotten } = readRecords(predicate);
  require(before === forgotten && before > 0 && after === 0, "The records do not add up");
  checkPresence(predicate, before);
  const dataset = read.object(read.object(predicate, "dataset"), "before");
  checkErasure(predicate, [subjects[0], read.hash(dataset, "digest")], []);
}

function checkNames(predicate) {
  read.text(predicate, "certificate");
  read.text(predicate, "deletion");
  checkDates(predicate);
}

function readRecords(predicate) {
  const records = read.object(predicate, "records");
  return {
    before: read.wholeNumber(records, "before"),
    after: read.wholeNumber(records, "after"),
    forgotten: read.wholeNumber(records, "forgotten_in_batch"),
  };
}

function readDataset(predicate, side, expectedRecords) {
  const dataset = read.object(read.object(predicate, "dataset"), side);
  const records = read.wholeNumber(dataset, "records");
  require(records === expectedRecords, `The data set ${side} has another number of records`);
  return { records, root: read.hash(dataset, "root") };
}

/** Reject unless the forgotten commitments are in the data set before. Returns them. */
function checkPresence(predicate, expectedRecords) {
  const { records, root } = readDataset(predicate, "before", expectedRecords);
  const forgotten = read.object(predicate, "forgotten");
  const commitments = read.hashes(forgotten, "commitments");
  const proof = read.object(forgotten, "before");
  const places = read.wholeNumbers(proof, "places");
  require(commitments.length > 0 && isAscending(commitments, Buffer.compare), "The commitments are not in order");
  const inOrder = places.length === commitments.length && isAscending(places, compareNumbers);
  require(inOrder, "The places of the commitments are not in order");
  const leaves = places.map((position, index) => ({ position, commitment: commitments[index] }));
  checkMultiProof(records, leaves, read.hashes(proof, "proof"), root, "The data set before");
  return commitments;
}

/** Reject unless the commitments are not in the data set after: their neighbours leave no room for them. */
function checkAbsent(commitments, predicate, expectedRecords) {
  const { records, root } = readDataset(predicate, "after", expectedRecords);
  const proof = read.object(read.object(predicate, "forgotten"), "after");
  const neighbours = read.objects(proof, "neighbours").map((neighbour) => ({
    position: read.wholeNumber(neighbour, "place"),
    commitment: read.hash(neighbour, "commitment"),
  }));
  const byPosition = isAscending(neighbours, (a, b) => compareNumbers(a.position, b.position));
  const byCommitment = isAscending(neighbours, (a, b) => Buffer.compare(a.commitment, b.commitment));
  require(byPosition && byCommitment, "The neighbours are not in order");
  checkMultiProof(records, neighbours, read.hashes(proof, "proof"), root, "The data set after");
  checkGaps(commitments, neighbours, records);
}

/** Walk along both ascending lists at once. */
function checkGaps(commitments, neighbours, records) {
  let next = 0; // the first neighbour that is not less than the commitment
  for (const commitment of commitments) {
    while (next < neighbours.length && Buffer.compare(neighbours[next].commitment, commitment) < 0) next += 1;
    const isPresent = next < neighbours.length && neighbours[next].commitment.equals(commitment);
    require(!isPresent, "A forgotten record is in the data set after");
    const below = next === 0 ? -1 : neighbours[next - 1].position;
    const above = next === neighbours.length ? records : neighbours[next].position;
    require(above === below + 1, "The data set after has room for a forgotten record");
  }
}

function checkBound(predicate) {
  const [policy, bound] = [read.object(predicate, "policy"), read.object(predicate, "bound")];
  const epsilon = read.number(bound, "epsilon");
  require(0 <= epsilon && epsilon <= read.number(policy, "epsilon"), "The bound is below 0 or above the policy");
  const level = readLevel(bound);
  require(LEVELS.indexOf(level) >= LEVELS.indexOf(readLevel(policy)), "The level is weaker than the policy's");
  const assumptions = read.objects(bound, "assumptions");
  const hold = assumptions.length > 0 && assumptions.every((assumption) => assumption.holds === true);
  require(hold, "An assumption of the bound does not hold, or none is listed");
  if (level === "retrained") require(epsilon === 0, "The epsilon of a retrained model is not 0");
  if (level === "estimated") checkInterval(bound, epsilon);
  checkReference(bound, policy);
}

/** Only sample sets have a kind of reference, and no earlier certificate has one. */
function checkReference(bound, policy) {
  if (!read.has(bound, "reference_kind") || bound.reference_kind === null) return;
  const reference = REFERENCES.indexOf(read.text(bound, "reference_kind"));
  const required = REFERENCES.indexOf(read.has(policy, "reference") ? read.text(policy, "reference") : "posterior");
  require(reference >= 0 && required >= 0, "The kind of reference is unknown");
  require(reference >= required, "The reference is weaker than the policy's");
}

function readLevel(parent) {
  const level = read.text(parent, "level");
  require(LEVELS.includes(level), "A level is unknown");
  return level;
}

function checkInterval(bound, epsilon) {
  const interval = read.list(bound, "interval");
  const isPair = interval.length === 2 && interval.every((end) => typeof end === "number");
  require(isPair, "The interval is not a list of two numbers");
  const [low, high] = interval;
  require(0 <= low && low <= high && high === epsilon, "The interval does not fit the epsilon");
}

function checkErasure(predicate, filesBefore, filesAfter) {
  const erasure = read.object(predicate, "erasure");
  const destroyed = read.objects(erasure, "destroyed").map(readErasedFile);
  const scheduled = read.objects(erasure, "scheduled").map(readErasedFile);
  for (const file of erasure.scheduled) read.time(file, "at");
  require(isAscending(destroyed, compareTexts) && isAscending(scheduled, compareTexts), "The files are not in order");
  const files = new Set([...destroyed, ...scheduled]);
  require(files.size === destroyed.length + scheduled.length, "A file is both destroyed and scheduled");
  const after = filesAfter.map((digest) => digest.toString("hex"));
  const before = filesBefore.map((digest) => digest.toString("hex")).filter((digest) => !after.includes(digest));
  require(before.every((digest) => files.has(digest)), "A file of the version before is not listed");
  require(!after.some((digest) => files.has(digest)), "A file of the version after is listed");
}

function readErasedFile(file) {
  read.text(file, "kind");
  return read.hash(file, "digest").toString("hex");
}

function isAscending(items, compare) {
  return items.every((item, index) => index === 0 || compare(items[index - 1], item) < 0);
}

function compareNumbers(a, b) {
  return a - b;
}

function compareTexts(a, b) {
  return a < b ? -1 : Number(a > b);
}
