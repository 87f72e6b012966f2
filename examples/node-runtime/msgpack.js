// MessagePack, as far as the Runtime contract needs it: nil, booleans, integers, strings, binary, arrays, maps.
'use strict';

// Always in the shortest form: digests are of these bytes.
function encode(value) {
  if (value === null || value === undefined) return Buffer.from([0xc0]);
  if (typeof value === 'boolean') return Buffer.from([value ? 0xc3 : 0xc2]);
  if (typeof value === 'number') return value < 0x80 ? Buffer.from([value]) : sized([0xcc, 0xcd, 0xce, 0xcf], value);
  if (typeof value === 'string') {
    const bytes = Buffer.from(value);
    return Buffer.concat([bytes.length < 32 ? Buffer.from([0xa0 | bytes.length]) : sized([0xd9, 0xda, 0xdb], bytes.length), bytes]);
  }
  if (Array.isArray(value)) {
    const head = value.length < 16 ? Buffer.from([0x90 | value.length]) : sized([null, 0xdc, 0xdd], value.length);
    return Buffer.concat([head, ...value.map(encode)]);
  }
  const entries = Object.entries(value).filter(([, item]) => item !== undefined);
  const head = entries.length < 16 ? Buffer.from([0x80 | entries.length]) : sized([null, 0xde, 0xdf], entries.length);
  return Buffer.concat([head, ...entries.flatMap(([key, item]) => [encode(key), encode(item)])]);
}

// A kind, by the bytes that the number needs (1, 2, 4, 8), and the number.
function sized(kinds, number) {
  const index = number < 0x100 && kinds[0] !== null ? 0 : number < 0x10000 ? 1 : number < 0x100000000 ? 2 : 3;
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(BigInt(number));
  return Buffer.concat([Buffer.from([kinds[index]]), bytes.subarray(8 - 2 ** index)]);
}

// Throws for bytes that are no MessagePack, or that do not end with the value.
function decode(bytes) {
  let at = 0;
  const take = (size) => {
    if (at + size > bytes.length) throw new Error('it ends too early');
    at += size;
    return bytes.subarray(at - size, at);
  };
  const number = (size) => take(size).readUIntBE(0, size);
  const long = (signed) => Number(signed ? take(8).readBigInt64BE() : take(8).readBigUInt64BE());
  const text = (size) => new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(take(size));
  const list = (size) => Array.from({ length: Math.min(size, bytes.length) }, value);
  const map = (size) => {
    const found = Object.create(null);
    for (let i = 0; i < size; i++) found[value()] = value();
    return found;
  };
  const kinds = {
    0xc0: () => null, 0xc2: () => false, 0xc3: () => true,
    0xc4: () => take(number(1)), 0xc5: () => take(number(2)), 0xc6: () => take(number(4)),
    0xca: () => take(4).readFloatBE(), 0xcb: () => take(8).readDoubleBE(),
    0xcc: () => number(1), 0xcd: () => number(2), 0xce: () => number(4), 0xcf: () => long(false),
    0xd0: () => take(1).readInt8(), 0xd1: () => take(2).readInt16BE(), 0xd2: () => take(4).readInt32BE(), 0xd3: () => long(true),
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
}

module.exports = { encode, decode };
