// Merkle trees (RFC 9162): multi-proof, inclusion and consistency. No bit operators: positions and sizes
// may exceed 32 bits.

import { createHash } from "node:crypto";

import { require } from "./rejected.mjs";

export function sha256(...parts) {
  const digest = createHash("sha256");
  for (const part of parts) digest.update(part);
  return digest.digest();
}

export function leafHash(leaf) {
  return sha256(Buffer.of(0), leaf);
}

function nodeHash(left, right) {
  return sha256(Buffer.of(1), left, right);
}

/**
 * Reject unless the leaves and the proof lead to the root of a tree of this size.
 * The leaves are {position, commitment} in strictly ascending order of positions.
 */
export function checkMultiProof(size, leaves, proof, root, what) {
  require(leaves.length > 0 && leaves.at(-1).position < size, `${what}: no leaf, or a position outside the tree`);
  let nextLeaf = 0;
  let nextHash = 0;

  function subtree(start, count) {
    const holdsLeaf = nextLeaf < leaves.length && leaves[nextLeaf].position < start + count;
    if (!holdsLeaf) {
      require(nextHash < proof.length, `${what}: the proof is too short`);
      return proof[nextHash++];
    }
    if (count === 1) return leafHash(leaves[nextLeaf++].commitment);
    const half = largestPowerBelow(count);
    const left = subtree(start, half);
    return nodeHash(left, subtree(start + half, count - half));
  }

  require(subtree(0, size).equals(root), `${what}: the proof does not lead to the root`);
  require(nextHash === proof.length, `${what}: the proof is too long`);
}

/** Reject unless the leaf is at this index of the tree. */
export function checkInclusion(index, leaf, proof, size, root) {
  require(index < size, "The index is outside the log");
  const path = new Path(index, size - 1);
  let hash = leafHash(leaf);
  for (const sibling of proof) {
    require(path.last > 0, "The inclusion proof is too long");
    hash = path.siblingIsLeft() ? nodeHash(sibling, hash) : nodeHash(hash, sibling);
    path.ascend();
  }
  require(path.last === 0 && hash.equals(root), "The inclusion proof does not lead to the root of the checkpoint");
}

/** Reject unless the newer tree continues the older one. Both are {size, root}. */
export function checkConsistency(older, newer, proof) {
  if (older.size === newer.size) {
    require(proof.length === 0 && older.root.equals(newer.root), "Two checkpoints of the same size differ");
    return;
  }
  const hashes = isPowerOfTwo(older.size) ? [older.root, ...proof] : proof;
  require(hashes.length > 0, "The consistency proof is empty");
  const path = new Path(older.size - 1, newer.size - 1);
  while (isOdd(path.node)) path.halve();
  let [first, second] = [hashes[0], hashes[0]];
  for (const sibling of hashes.slice(1)) {
    require(path.last > 0, "The consistency proof is too long");
    if (path.siblingIsLeft()) first = nodeHash(sibling, first);
    second = path.siblingIsLeft() ? nodeHash(sibling, second) : nodeHash(second, sibling);
    path.ascend();
  }
  const holds = path.last === 0 && first.equals(older.root) && second.equals(newer.root);
  require(holds, "The later checkpoint does not continue the bundle's");
}

/** A node and the last node of its level, on the way up. */
class Path {
  constructor(node, last) {
    this.node = node;
    this.last = last;
  }

  siblingIsLeft() {
    return isOdd(this.node) || this.node === this.last;
  }

  ascend() {
    if (this.siblingIsLeft()) while (!isOdd(this.node) && this.node > 0) this.halve();
    this.halve();
  }

  halve() {
    this.node = Math.floor(this.node / 2);
    this.last = Math.floor(this.last / 2);
  }
}

function isOdd(number) {
  return number % 2 === 1;
}

function largestPowerBelow(number) {
  let power = 1;
  while (power * 2 < number) power *= 2;
  return power;
}

function isPowerOfTwo(number) {
  return number === 1 || largestPowerBelow(number) * 2 === number;
}
