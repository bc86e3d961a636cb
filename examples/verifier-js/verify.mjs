#!/usr/bin/env node
// Command line of the verifier: see README.md.

import { createHash } from "node:crypto";
import { closeSync, openSync, readSync } from "node:fs";
import { parseArgs } from "node:util";

import { MAX_BYTES, verifyBundle } from "./bundle.mjs";
import { Rejected } from "./rejected.mjs";

const USAGE = `usage: verify.mjs BUNDLE --key FILE [--posterior FILE] [--later FILE] [--witness KEY]... [--origin NAME]
                  [--json]
       verify.mjs --batch FILE`;
const EXIT_CODES = { verified: 0, rejected: 1, unreadable: 2, unconfirmed: 3, fault: 70 };
const BLOCK_BYTES = 2 ** 16;
const OPTIONS = {
  key: { type: "string" },
  posterior: { type: "string" },
  later: { type: "string" },
  witness: { type: "string", multiple: true },
  origin: { type: "string" },
  json: { type: "boolean" },
  batch: { type: "string" },
};

/** A file cannot be read, or the command line cannot be understood. */
class Unreadable extends Error {}

main(process.argv.slice(2));

function main(words) {
  const result = attempt(() => run(parseCommand(words)));
  if (result === undefined) return;
  process.exitCode = result.exit_code;
  console.log(words.includes("--json") ? JSON.stringify(result, null, 2) : formatResult(result));
}

function run(command) {
  return command.batch === undefined ? verifyFiles(command) : runBatch(command.batch);
}

/** Verify each line of the file, a JSON list of command-line words, and print one result per line. */
function runBatch(path) {
  for (const line of readBytes(path, Infinity).toString().split("\n").filter(Boolean)) {
    console.log(JSON.stringify(attempt(() => verifyFiles(parseCommand(JSON.parse(line))))));
  }
}

function parseCommand(words) {
  const { values, positionals } = parseWords(words);
  const isComplete = positionals.length === 1 && values.key !== undefined;
  if (!isComplete && values.batch === undefined) throw new Unreadable(USAGE);
  return { ...values, bundle: positionals[0] };
}

function parseWords(words) {
  try {
    return parseArgs({ args: words, options: OPTIONS, allowPositionals: true });
  } catch (error) {
    throw new Unreadable(`${error.message}\n${USAGE}`);
  }
}

function verifyFiles(command) {
  const files = {
    bundle: readBytes(command.bundle, MAX_BYTES.bundle),
    keys: readBytes(command.key, MAX_BYTES.keys),
    later: command.later === undefined ? null : readBytes(command.later, MAX_BYTES.later),
    posteriorDigest: command.posterior === undefined ? null : digestFile(command.posterior),
  };
  const options = { origin: command.origin, witnesses: command.witness };
  const { kind, predicate, notProved, missing } = verifyBundle(files, options);
  const outcome = missing === null ? "verified" : "unconfirmed";
  return { ...describe(outcome, missing), kind, deletion: predicate.deletion, not_proved: notProved };
}

/** What the step returns, or the outcome that its error means. */
function attempt(step) {
  try {
    return step();
  } catch (error) {
    if (error instanceof Rejected) return describe("rejected", error.message);
    if (error instanceof Unreadable) return describe("unreadable", error.message);
    return describe("fault", `This verifier has a fault: ${error.message}`);
  }
}

function describe(outcome, reason) {
  return { outcome, exit_code: EXIT_CODES[outcome], reason };
}

/** The bytes of a file, or one byte more than the limit if it is larger. */
function readBytes(path, limit) {
  const blocks = [];
  let size = 0;
  for (const block of readBlocks(path)) {
    blocks.push(block);
    size += block.length;
    if (size > limit) break;
  }
  return Buffer.concat(blocks).subarray(0, limit + 1);
}

/** SHA-256 of a file of any size. */
function digestFile(path) {
  const digest = createHash("sha256");
  for (const block of readBlocks(path)) digest.update(block);
  return digest.digest();
}

function* readBlocks(path) {
  let file;
  try {
    file = openSync(path);
    for (;;) {
      const block = Buffer.allocUnsafe(BLOCK_BYTES);
      const count = readSync(file, block);
      if (count === 0) return;
      yield block.subarray(0, count);
    }
  } catch (error) {
    throw new Unreadable(`${path} cannot be read (${error.code})`);
  } finally {
    if (file !== undefined) closeSync(file);
  }
}

function formatResult({ outcome, reason, kind, deletion, not_proved: notProved = [] }) {
  const about = kind === undefined ? [] : [`${kind} for deletion ${deletion}`];
  const limits = notProved.map((limit) => `not proved: ${limit}`);
  return [...about, ...limits, reason === null ? outcome : `${outcome}: ${reason}`].join("\n");
}
