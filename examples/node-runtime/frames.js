// The wire: each REQUEST, with its whole body, goes to `handle`, and what that gives is its one answer.
import net from 'node:net';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { decode, encode } from '@msgpack/msgpack';

const [REQUEST, RESPONSE, ERROR, BODY, PING, PONG] = [1, 2, 3, 4, 8, 9];
const [HEADER, CHUNK_MAX, HEAD_MAX, BODY_MAX, DEFAULT_MS] = [25, 65536, 524288, 2097152, 30000];
const [ARRAY_OF_TWO, NOTHING] = [0x92, Buffer.alloc(0)];

function frame(kind, stream, head = NOTHING, bodySize = 0, chunk = NOTHING) {
  const header = Buffer.alloc(HEADER);
  header.writeUInt32BE(HEADER - 4 + head.length + chunk.length, 0);
  header.writeUInt8(kind, 4);
  header.writeBigUInt64BE(stream, 5);
  header.writeUInt32BE(head.length, 17);
  header.writeUInt32BE(bodySize, 21);
  return Buffer.concat([header, head, chunk]);
}

async function answer(socket, kind, stream, head, body = NOTHING) {
  socket.write(frame(kind, stream, encode(head), body.length, body.subarray(0, CHUNK_MAX)));
  for (let at = CHUNK_MAX; at < body.length; at += CHUNK_MAX) {
    await nextTurn(); // Small answers pass large ones (C2).
    socket.write(frame(BODY, stream, NOTHING, 0, body.subarray(at, at + CHUNK_MAX)));
  }
}

async function serve(socket, stream, { head, body, deadline }, handle) {
  try {
    const [method, parameters] = decode(head);
    await answer(socket, RESPONSE, stream, ...(await handle(method, parameters, body, deadline)));
  } catch (error) { // Without a head it comes from parameters of another shape (C6).
    await answer(socket, ERROR, stream, error.head ?? { reason: 'InvalidArgument', message: String(error) });
  }
}

async function converse(socket, handle) {
  const requests = new Map(); // by stream: those whose body is on its way
  let buffer = NOTHING;
  for await (const data of socket) {
    buffer = Buffer.concat([buffer, data]);
    while (buffer.length >= HEADER) {
      const [kind, stream] = [buffer.readUInt8(4), buffer.readBigUInt64BE(5)];
      const [length, timeout, headSize, size] = [0, 13, 17, 21].map((at) => buffer.readUInt32BE(at));
      const [chunkAt, end] = [HEADER + headSize, 4 + length];
      const fits = headSize <= HEAD_MAX && size <= BODY_MAX && chunkAt <= end && end <= chunkAt + CHUNK_MAX;
      if (!fits || kind < REQUEST || kind > PONG) throw new Error('a broken frame');
      if (buffer.length < end) break;
      const [head, chunk] = [buffer.subarray(HEADER, chunkAt), buffer.subarray(chunkAt, end)];
      buffer = buffer.subarray(end);
      if (kind === PING) socket.write(frame(PONG, stream));
      if (kind === REQUEST && head[0] === ARRAY_OF_TWO) {
        requests.set(stream, { head, size, body: NOTHING, deadline: Date.now() + (timeout || DEFAULT_MS) });
      }
      if (kind !== REQUEST && kind !== BODY) continue;
      const request = requests.get(stream);
      request.body = Buffer.concat([request.body, chunk]);
      if (request.body.length > request.size) throw new Error('more than the whole body');
      if (request.body.length < request.size) continue;
      requests.delete(stream);
      serve(socket, stream, request, handle);
    }
  }
}

// `handle(method, parameters, body, deadline)` gives [head, body], or throws an Error that has the head of one.
export function listen(path, handle) {
  net.createServer((socket) => converse(socket, handle).catch(() => socket.destroy())).listen(path); // C3
}
