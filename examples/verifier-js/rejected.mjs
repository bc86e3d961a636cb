/** The bundle breaks a rule of the format; the message says which. */
export class Rejected extends Error {}

export function require(condition, message) {
  if (!condition) throw new Rejected(message);
}
