// MessagePack, as far as heads need it: nil, booleans, whole numbers, strings, arrays, maps. Digests are of its bytes.
'use strict';

// The first byte of `kinds`, by the bytes that the number needs (1, 2, 4, 8), and the number.
function sized(kinds, number) {
  const index = [0x100, 0x10000, 0x100000000, Infinity].findIndex((bound, at) => kinds[at] && number < bound);
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(number));
  return Buffer.concat([Buffer.from([kinds[index]]), bytes.subarray(8 - 2 ** index)]);
}
const headed = (small, bound, kinds, size) => (size < bound ? Buffer.from([small | size]) : sized(kinds, size));

exports.encode = function encode(value) {
  if (value === null || value === undefined) return Buffer.from([0xc0]);
  if (typeof value === 'boolean') return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === 'number') return headed(0, 0x80, [0xcc, 0xcd, 0xce, 0xcf], value);
  if (typeof value === 'string') {
    const bytes = Buffer.from(value);
    return Buffer.concat([headed(0xa0, 32, [0xd9, 0xda, 0xdb], bytes.length), bytes]);
  }
  if (Array.isArray(value)) return Buffer.concat([headed(0x90, 16, [0, 0xdc, 0xdd], value.length), ...value.map(encode)]);
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  return Buffer.concat([headed(0x80, 16, [0, 0xde, 0xdf], entries.length), ...entries.flat().map(encode)]);
};

// Throws for bytes that are nothing of it, or that do not end with the value.
exports.decode = function decode(bytes) {
  let at = 0;
  const take = (size) => {
    if ((at += size) > bytes.length) throw new Error('it ends too early');
    return bytes.subarray(at - size, at);
  };
  const number = (size) => (size === 8 ? Number(take(8).readBigUInt64BE()) : take(size).readUIntBE(0, size));
  const text = (size) => new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(take(size));
  const list = (size) => Array.from({ length: Math.min(size, bytes.length) }, value);
  const map = (size) => Object.fromEntries(list(2 * size).flatMap((key, i, all) => (i % 2 ? [] : [[key, all[i + 1]]])));
  const kinds = {
    0xc0: () => null, 0xc2: () => false, 0xc3: () => true, 0xcb: () => take(8).readDoubleBE(),
    0xcc: () => number(1), 0xcd: () => number(2), 0xce: () => number(4), 0xcf: () => number(8),
    0xd9: () => text(number(1)), 0xda: () => text(number(2)), 0xdb: () => text(number(4)),
    0xdc: () => list(number(2)), 0xdd: () => list(number(4)), 0xde: () => map(number(2)), 0xdf: () => map(number(4)),
  };
  function value() {
    const kind = number(1);
    if (kind < 0x80) return kind;
    if (kind < 0x90) return map(kind & 0x0f);
    if (kind < 0xa0) return list(kind & 0x0f);
    if (kind < 0xc0) return text(kind & 0x1f);
    if (kind >= 0xe0) return kind - 256;
    if (!kinds[kind]) throw new Error(`unknown kind ${kind}`);
    return kinds[kind]();
  }
  const found = value();
  if (at !== bytes.length) throw new Error('something follows it');
  return found;
};
