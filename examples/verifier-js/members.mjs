// Members of JSON objects, read by type. A member that is missing or of another type is rejected.

import { isObject } from "./json.mjs";
import { Rejected, require } from "./rejected.mjs";

const HASH = /^[0-9a-f]{64}$/;
const TIME = /^(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?(?:Z|([+-])(\d\d):(\d\d))$/;
const MICROSECONDS = 1_000_000n;

const TYPES = {
  text: (value) => typeof value === "string",
  number: (value) => typeof value === "number",
  "whole number": (value) => Number.isSafeInteger(value) && value >= 0,
  hash: isHash,
  time: (value) => typeof value === "string" && parseTime(value) !== null,
  object: isObject,
  list: Array.isArray,
};

/** Whether the object has the member; one whose value is null is present. */
export function has(object, name) {
  return Object.hasOwn(object, name);
}

export const text = reader("text");
export const number = reader("number");
export const wholeNumber = reader("whole number");
export const object = reader("object");
export const list = reader("list");
const hashText = reader("hash");
const timeText = reader("time");

/** A hash, as 32 bytes. */
export function hash(parent, name) {
  return Buffer.from(hashText(parent, name), "hex");
}

/** A time, as microseconds since 1970 (BigInt). */
export function time(parent, name) {
  return parseTime(timeText(parent, name));
}

/** A time that may be absent or null, which is null. */
export function optionalTime(parent, name) {
  return (parent[name] ?? null) === null ? null : time(parent, name);
}

export function texts(parent, name) {
  return list(parent, name).map((item, index) => checkType("text", item, `${name}[${index}]`));
}

export function wholeNumbers(parent, name) {
  return list(parent, name).map((item, index) => checkType("whole number", item, `${name}[${index}]`));
}

export function hashes(parent, name) {
  return list(parent, name).map((item, index) => Buffer.from(checkType("hash", item, `${name}[${index}]`), "hex"));
}

export function objects(parent, name) {
  return list(parent, name).map((item, index) => checkType("object", item, `${name}[${index}]`));
}

/** Reject an object that has not exactly these members. */
export function requireExactly(parent, names, what) {
  const actual = Object.keys(parent).sort().join(" ");
  require(actual === [...names].sort().join(" "), `${what} has not exactly the members ${names.join(", ")}`);
}

/** Decode base64 that has exactly one spelling. */
export function decodeBase64(encoded, what) {
  const bytes = Buffer.from(encoded, "base64");
  require(bytes.toString("base64") === encoded, `${what} is not canonical base64`);
  return bytes;
}

function reader(type) {
  return (parent, name) => {
    if (!has(parent, name)) throw new Rejected(`${name} is missing`);
    return checkType(type, parent[name], name);
  };
}

function checkType(type, value, name) {
  require(TYPES[type](value), `${name} is not of type ${type}`);
  return value;
}

function isHash(value) {
  return typeof value === "string" && HASH.test(value);
}

function parseTime(string) {
  const match = TIME.exec(string);
  if (match === null) return null;
  const [year, month, day, hour, minute, second] = match.slice(1, 7).map(Number);
  const fraction = BigInt((match[7] ?? "").padEnd(6, "0"));
  const [offsetHour, offsetMinute] = [Number(match[9] ?? 0), Number(match[10] ?? 0)];
  const exists = year > 0 && isDate(year, month, day) && hour < 24 && minute < 60 && second < 60;
  if (!exists || offsetHour > 23 || offsetMinute > 59) return null;
  const offset = (match[8] === "-" ? -1 : 1) * (offsetHour * 60 + offsetMinute);
  const utc = utcDate(year, month, day);
  utc.setUTCHours(hour, minute - offset, second);
  if (utc.getUTCFullYear() < 1 || utc.getUTCFullYear() > 9999) return null;
  return (BigInt(utc.getTime()) / 1000n) * MICROSECONDS + fraction;
}

function isDate(year, month, day) {
  const date = utcDate(year, month, day);
  return date.getUTCMonth() === month - 1 && date.getUTCDate() === day;
}

function utcDate(year, month, day) {
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day); // Date.UTC would take the years 0 to 99 for 1900 to 1999
  return date;
}
