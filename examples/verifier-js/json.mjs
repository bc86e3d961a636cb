// JSON by the rules of docs/reference/bundle-format.md#json. JSON.parse is not enough: it keeps the last of two members
// of the same name, turns 1e400 into Infinity, and accepts halves of surrogate pairs.

import { Rejected, require } from "./rejected.mjs";

const MAX_LEVELS = 64;
const MAX_SEPARATORS = 2 ** 21;

const SPACE = /[ \t\n\r]*/y;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const LITERAL = /true|false|null/y;

/** Parse the bytes of a JSON object. Objects have no prototype, so that any name is an ordinary member. */
export function parseObject(bytes, what) {
  const value = new Parser(decode(bytes, what), what).parse();
  require(isObject(value), `${what} is not a JSON object`);
  return value;
}

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Write parsed JSON without whitespace, with the members in the order of their names (RFC 8785). */
export function writeCanonical(value) {
  if (Array.isArray(value)) return `[${value.map(writeCanonical).join(",")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  const names = Object.keys(value).sort();
  return `{${names.map((name) => `${JSON.stringify(name)}:${writeCanonical(value[name])}`).join(",")}}`;
}

function decode(bytes, what) {
  try {
    // With ignoreBOM the mark stays in the text, where the grammar rejects it.
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    throw new Rejected(`${what} is not UTF-8`);
  }
}

class Parser {
  constructor(text, what) {
    this.text = text;
    this.what = what;
    this.position = 0;
    this.separators = 0;
  }

  parse() {
    const value = this.#value(1);
    this.#skipSpace();
    if (this.position < this.text.length) this.#fail("text after its end");
    return value;
  }

  #value(level) {
    this.#skipSpace();
    const character = this.text[this.position];
    if (character === "{" || character === "[") {
      if (level > MAX_LEVELS) this.#fail(`more than ${MAX_LEVELS} levels of nesting`);
      return character === "{" ? this.#object(level) : this.#list(level);
    }
    if (character === '"') return this.#string();
    const literal = this.#match(LITERAL);
    return literal === null ? this.#number() : JSON.parse(literal);
  }

  #object(level) {
    const members = Object.create(null);
    this.#items("}", () => {
      this.#skipSpace();
      const name = this.#string();
      if (Object.hasOwn(members, name)) this.#fail("two members of the same name");
      this.#skipSpace();
      this.#expect(":");
      members[name] = this.#value(level + 1);
    });
    return members;
  }

  #list(level) {
    const items = [];
    this.#items("]", () => items.push(this.#value(level + 1)));
    return items;
  }

  #items(end, readItem) {
    this.#separator();
    this.#skipSpace();
    if (this.text[this.position] === end) {
      this.position += 1;
      return;
    }
    readItem();
    this.#skipSpace();
    while (this.text[this.position] === ",") {
      this.#separator();
      readItem();
      this.#skipSpace();
    }
    this.#expect(end);
  }

  #separator() {
    this.position += 1;
    this.separators += 1;
    if (this.separators > MAX_SEPARATORS) this.#fail("too many items");
  }

  #string() {
    if (this.text[this.position] !== '"') this.#fail("no string where one belongs");
    const start = this.position;
    this.position = this.#endOfString();
    const string = this.#unescape(this.text.slice(start, this.position));
    if (!string.isWellFormed()) this.#fail("half of a surrogate pair");
    return string;
  }

  /** Position after the closing quote. A regular expression would overflow its stack on long strings. */
  #endOfString() {
    let position = this.position + 1;
    while (position < this.text.length && this.text[position] !== '"') position += this.text[position] === "\\" ? 2 : 1;
    return position + 1;
  }

  #unescape(literal) {
    try {
      return JSON.parse(literal);
    } catch {
      this.#fail("a string that is not well-formed");
    }
  }

  #number() {
    const literal = this.#match(NUMBER);
    if (literal === null) this.#fail("a value that is not well-formed");
    const number = Number(literal);
    if (!Number.isFinite(number)) this.#fail("a number too large for a double");
    return number;
  }

  #skipSpace() {
    this.#match(SPACE);
  }

  #expect(character) {
    if (this.text[this.position] !== character) this.#fail(`no ${character} where it belongs`);
    this.position += 1;
  }

  #match(pattern) {
    pattern.lastIndex = this.position;
    const match = pattern.exec(this.text);
    if (match === null) return null;
    this.position = pattern.lastIndex;
    return match[0];
  }

  #fail(fault) {
    throw new Rejected(`${this.what} is not the JSON it should be: ${fault} (character ${this.position})`);
  }
}
