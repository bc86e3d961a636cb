// The keys file: public keys with their uses and dates, the name of the log, keys of witnesses.

import { createPublicKey, verify } from "node:crypto";

import { parseObject } from "./json.mjs";
import { decodeBase64, has, objects, optionalTime, text, texts } from "./members.mjs";
import { sha256 } from "./merkle.mjs";
import { require } from "./rejected.mjs";

const BEGIN = "-----BEGIN PUBLIC KEY-----";
const END = "-----END PUBLIC KEY-----";
const DER_PREFIX = Buffer.from("302a300506032b6570032100", "hex");
const BLANK = [0x20, 0x09, 0x0d, 0x0a];
const USES = ["statements", "log"];

/** Read a keys file: {origin, keys, witnesses}; origin is null if the file names no log. */
export function readKeys(bytes) {
  const isList = bytes.find((byte) => !BLANK.includes(byte)) === 0x7b;
  const trusted = isList ? readList(parseObject(bytes, "The keys file")) : readPemFile(bytes.toString("latin1"));
  require(trusted.keys.length > 0, "The keys file has no key");
  return trusted;
}

/** First 4 bytes of the hash that names a key in a checkpoint. */
export function keyHash(name, type, rawKey) {
  return sha256(`${name}\n`, Buffer.of(type), rawKey).subarray(0, 4);
}

export function verifies(rawKey, message, signature) {
  const key = createPublicKey({ key: Buffer.concat([DER_PREFIX, rawKey]), format: "der", type: "spki" });
  return signature.length === 64 && verify(null, message, key, signature);
}

function readList(content) {
  const keys = objects(content, "keys").map(readKey);
  require(new Set(keys.map((key) => key.id)).size === keys.length, "The list of keys has a key twice");
  return {
    origin: has(content, "origin") ? text(content, "origin") : null,
    keys,
    witnesses: has(content, "witnesses") ? texts(content, "witnesses") : [],
  };
}

function readKey(entry) {
  const pem = text(entry, "public_key_pem");
  require(pem.startsWith(BEGIN), "public_key_pem does not begin with its mark");
  const blocks = pemBlocks(pem);
  require(blocks.length === 1, "public_key_pem does not hold exactly one key");
  const key = makeKey(blocks[0]);
  require(!has(entry, "keyid") || text(entry, "keyid") === key.id, "keyid is not the id of its key");
  key.use = (entry.use ?? null) === null ? null : text(entry, "use");
  require(key.use === null || USES.includes(key.use), "The use of a key is unknown");
  key.retiredAt = optionalTime(entry, "retired_at");
  key.revokedAt = optionalTime(entry, "revoked_at");
  return key;
}

function readPemFile(content) {
  return { origin: null, keys: pemBlocks(content).map(makeKey), witnesses: [] };
}

/** The text between the marks of each block. */
function pemBlocks(content) {
  return content
    .split(BEGIN)
    .slice(1)
    .map((block) => {
      require(block.includes(END), "A public key has no end mark");
      return block.slice(0, block.indexOf(END));
    });
}

function makeKey(pemBody) {
  const der = decodeBase64(pemBody.replace(/[ \t\r\n]/g, ""), "A public key");
  const isEd25519 = der.length === 44 && der.subarray(0, 12).equals(DER_PREFIX);
  require(isEd25519, "A public key is not an Ed25519 key");
  const raw = der.subarray(12);
  return { raw, id: sha256(raw).toString("hex"), use: null, retiredAt: null, revokedAt: null };
}
