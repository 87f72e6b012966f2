// The wire: a server on a unix socket that gives each REQUEST, with its whole body, to `handle` and sends one answer.
'use strict';

const net = require('net');
const { encode, decode } = require('./msgpack');

const [REQUEST, RESPONSE, ERROR, BODY, PING, PONG] = [1, 2, 3, 4, 8, 9];
const [HEADER, CHUNK, HEAD_MAX, BODY_MAX] = [25, 65536, 524288, 2097152];

class CallError extends Error {
  constructor(reason, message, details = {}, retryAfterMs = undefined) {
    super(message);
    this.head = { reason, message, details, retryAfterMs };
  }
}

function frame(kind, stream, head = Buffer.alloc(0), bodySize = 0, chunk = Buffer.alloc(0)) {
  const header = Buffer.alloc(HEADER);
  header.writeUInt32BE(HEADER - 4 + head.length + chunk.length, 0);
  header[4] = kind;
  header.writeBigUInt64BE(stream, 5);
  header.writeUInt32BE(head.length, 17);
  header.writeUInt32BE(bodySize, 21);
  return Buffer.concat([header, head, chunk]);
}

function answer(socket, kind, stream, head, text = '') {
  const body = Buffer.from(text);
  socket.write(frame(kind, stream, encode(head), body.length, body.subarray(0, CHUNK)));
  const next = (at) => { // One chunk a turn, so that small answers pass large ones (C2).
    if (at >= body.length || socket.destroyed) return;
    socket.write(frame(BODY, stream, undefined, 0, body.subarray(at, at + CHUNK)));
    setImmediate(next, at + CHUNK);
  };
  setImmediate(next, CHUNK);
}

// `handle(method, parameters, body, deadline)` returns [head, body], or throws a CallError, at once or later.
function listen(path, handle) {
  net.createServer((socket) => {
    let buffer = Buffer.alloc(0);
    const partial = new Map();
    const serve = async ({ stream, value, head: [method, parameters], chunks }) => {
      try {
        const reply = await handle(method, parameters, Buffer.concat(chunks), Date.now() + (value || 30000));
        answer(socket, RESPONSE, stream, ...reply);
      } catch (error) {
        if (!error.head) console.error(error);
        answer(socket, ERROR, stream, error.head || { reason: 'InvalidArgument', message: String(error), details: {} });
      }
    };
    socket.on('error', () => {});
    socket.on('data', (data) => {
      buffer = buffer.length ? Buffer.concat([buffer, data]) : data;
      while (buffer.length >= HEADER) {
        const [length, kind, stream] = [buffer.readUInt32BE(0), buffer[4], buffer.readBigUInt64BE(5)];
        const [value, headSize, missing] = [buffer.readUInt32BE(13), buffer.readUInt32BE(17), buffer.readUInt32BE(21)];
        const chunkSize = length - (HEADER - 4) - headSize;
        const broken = chunkSize < 0 || chunkSize > CHUNK || headSize > HEAD_MAX || missing > BODY_MAX;
        if (broken || kind < REQUEST || kind > PONG) return socket.destroy(); // C3
        if (buffer.length < length + 4) return;
        const head = buffer.subarray(HEADER, HEADER + headSize);
        const chunk = buffer.subarray(HEADER + headSize, length + 4);
        buffer = buffer.subarray(length + 4);
        if (kind === PING) socket.write(frame(PONG, stream));
        if (kind !== REQUEST && kind !== BODY) continue;
        let request = partial.get(stream);
        try {
          if (kind === REQUEST) request = { stream, value, head: decode(head), chunks: [], missing };
        } catch { /* It is none. */ }
        if (!request || !Array.isArray(request.head) || chunkSize > request.missing) return socket.destroy();
        request.chunks.push(chunk);
        request.missing -= chunkSize;
        partial.set(stream, request);
        if (!request.missing) partial.delete(stream), serve(request);
      }
    });
  }).listen(path);
}

module.exports = { CallError, listen };
