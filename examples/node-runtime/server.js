// A Runtime Server for JavaScript: KRUNTIMES_SOCKET=… KRUNTIMES_WORK_DIR=… node server.js
//
// It serves functions and no tasks, and keeps C9 in part: strays of a server that was killed are not ended. Here: frames and methods; functions.js holds one function, worker.js runs in its
// processes. See docs/runtime-contract.md for what each line must do.
'use strict';

const crypto = require('crypto');
const fs = require('fs');
const net = require('net');
const path = require('path');
const { encode, decode } = require('./msgpack');
const { Function, CallError, precondition } = require('./functions');

const work = process.env.KRUNTIMES_WORK_DIR;
const instanceId = crypto.randomUUID();
const started = Math.round(Number(fs.readFileSync('/proc/uptime', 'utf8').split(' ')[0]) * 1e6);
const held = new Set();
const tombstones = new Map(); // Run UID -> the highest attempt that was closed
let condemned = '';

const [REQUEST, RESPONSE, ERROR, BODY, CANCEL, REFUSED, GOAWAY, PING, PONG] = [1, 2, 3, 4, 5, 6, 7, 8, 9];
const HEADER = 25;
const CHUNK = 65536;

// --- frames

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
  const next = (at) => { // one chunk a turn, so that small answers pass large ones
    if (at >= body.length || socket.destroyed) return;
    socket.write(frame(BODY, stream, undefined, 0, body.subarray(at, at + CHUNK)));
    setImmediate(next, at + CHUNK);
  };
  setImmediate(next, CHUNK);
}

fs.rmSync(process.env.KRUNTIMES_SOCKET, { force: true }); // of one that was killed
net.createServer((socket) => {
  let buffer = Buffer.alloc(0);
  const partial = new Map();
  socket.on('error', () => {});
  socket.on('data', (data) => {
    buffer = buffer.length ? Buffer.concat([buffer, data]) : data;
    while (buffer.length >= HEADER) {
      const [length, kind, stream] = [buffer.readUInt32BE(0), buffer[4], buffer.readBigUInt64BE(5)];
      const [value, headSize, bodySize] = [buffer.readUInt32BE(13), buffer.readUInt32BE(17), buffer.readUInt32BE(21)];
      const chunkSize = length - (HEADER - 4) - headSize;
      if (kind < REQUEST || kind > PONG || headSize > 524288 || chunkSize < 0 || chunkSize > CHUNK || bodySize > 2097152) return socket.destroy();
      if (buffer.length < length + 4) return;
      const [head, chunk] = [buffer.subarray(HEADER, HEADER + headSize), buffer.subarray(HEADER + headSize, length + 4)];
      buffer = buffer.subarray(length + 4);
      if (kind === PING) socket.write(frame(PONG, stream));
      if (kind !== REQUEST && kind !== BODY) continue;
      const request = kind === REQUEST ? { stream, value, head, chunks: [], missing: bodySize } : partial.get(stream);
      if (!request || chunkSize > request.missing) return socket.destroy();
      request.chunks.push(chunk);
      request.missing -= chunkSize;
      partial.set(stream, request);
      if (request.missing) continue;
      partial.delete(stream);
      if (!serve(socket, request)) return socket.destroy();
    }
  });
}).listen(process.env.KRUNTIMES_SOCKET);

function serve(socket, { stream, value, head, chunks }) {
  let method, parameters;
  try {
    [method, parameters] = decode(head);
  } catch {
    return false;
  }
  const fail = (error) => {
    if (!(error instanceof CallError)) console.error(error);
    answer(socket, ERROR, stream, error.head || { reason: 'InternalError', message: String(error), details: {} });
  };
  const deadline = Date.now() + (value || 30000);
  try {
    if (!Object.hasOwn(methods, method)) throw new CallError('UnknownMethod', `no method ${method}`);
    if (parameters === null || typeof parameters !== 'object') throw new CallError('InvalidArgument', 'parameters are a map');
    Promise.resolve(methods[method](parameters, { body: Buffer.concat(chunks), deadline })).then(
      ([reply, text]) => answer(socket, RESPONSE, stream, reply, text), fail);
  } catch (error) {
    fail(error);
  }
  return true;
}

// --- methods

const need = (good, why) => { if (!good) throw new CallError('InvalidArgument', why); };
const same = (one, other) => one.runUid === other.runUid && one.attempt === other.attempt;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, Math.min(ms, 60000)).unref());
const bury = ({ runUid, attempt }) => tombstones.set(runUid, Math.max(attempt, tombstones.get(runUid) || 0));
const find = (id) => [...held].find((one) => one.id === id);

function checkPod(epoch) {
  const other = [...held].some((one) => same(one.head.epoch, epoch) && one.head.epoch.podUid !== epoch.podUid);
  if (other) throw precondition('another Pod has this attempt');
}

function digest({ epoch, handler, env, idleTimeoutMs, concurrency = 1 }) {
  const sorted = Object.entries(env || {}).sort(([one], [other]) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
  const value = ['function', [epoch.runUid, epoch.attempt, epoch.podUid], handler, sorted, idleTimeoutMs ?? null, concurrency];
  return crypto.createHash('sha256').update(encode(value)).digest('hex');
}

function check(head) {
  const { epoch, directory, handler, env = {}, concurrency = 1 } = head;
  need(epoch && typeof epoch.runUid === 'string' && typeof epoch.podUid === 'string' && epoch.attempt >= 1, 'epoch');
  need(typeof handler === 'string' && handler.includes('.'), 'handler is file.function');
  need(Number.isInteger(concurrency) && concurrency >= 1 && concurrency <= 64, 'concurrency is 1 to 64');
  need(Object.keys(env).every((name) => name && !name.includes('=')), 'a name in env');
  need(typeof directory === 'string' && path.resolve(directory).startsWith(path.resolve(work) + path.sep), `directory is below ${work}`);
  need(fs.existsSync(directory), 'directory is a folder');
  need(head.digest === digest(head), `the digest is ${digest(head)}`);
}

const methods = {
  Hello({ versions }) {
    need(Array.isArray(versions) && versions.every(Number.isInteger), 'versions are whole numbers');
    if (!versions.includes(1)) throw new CallError('UnsupportedVersion', 'this server speaks 1');
    const epochs = [...held].map((one) => ({ epoch: one.head.epoch, kind: 'function', open: one.open, registrationId: one.id }));
    return [{ version: 1, language: 'node', defaultScript: 'main.js', instanceId, startedBoottimeUs: started, held: epochs }];
  },

  Alive({ condemn }) {
    condemned = condemned || condemn || '';
    if (condemned) throw new CallError('Unhealthy', condemned);
    return [{ instanceId }];
  },

  async RegisterFunction(head, { deadline }) {
    check(head);
    checkPod(head.epoch);
    let mine = [...held].find((one) => same(one.head.epoch, head.epoch));
    if (mine && !mine.open && !tombstones.has(head.epoch.runUid)) await mine.gone.then(() => { mine = undefined; });
    const newest = Math.max(tombstones.get(head.epoch.runUid) || 0, ...[...held].filter((one) => one.head.epoch.runUid === head.epoch.runUid).map((one) => one.head.epoch.attempt - 1));
    if (head.epoch.attempt <= newest) throw precondition('this attempt is over');
    if (mine && mine.head.digest !== head.digest) throw new CallError('AlreadyExists', 'this epoch has another digest');
    if (!mine) {
      const file = head.handler.slice(0, head.handler.lastIndexOf('.')).split('.').join('/') + '.js';
      if (!fs.existsSync(path.join(head.directory, file))) throw new CallError('SourceInvalid', `no file ${file} in the source`);
      for (const older of [...held].filter((one) => one.head.epoch.runUid === head.epoch.runUid)) {
        bury(older.head.epoch);
        older.close();
      }
      mine = new Function(head, work, (one) => held.delete(one));
      held.add(mine);
    }
    const timer = setTimeout(() => mine.state === 'loading' && mine.finish('closing', { reason: 'RegistrationTimedOut', message: 'the load took too long' }), deadline - Date.now());
    try {
      await mine.loaded;
    } catch (error) {
      await mine.gone;
      throw error;
    } finally {
      clearTimeout(timer);
    }
    return [{ registrationId: mine.id }];
  },

  InvokeFunction({ registrationId, invocationId }, { body, deadline }) {
    const one = find(registrationId);
    if (!one) throw precondition('no such registration');
    if (body.length > 1048576) throw new CallError('RequestTooLarge', `the body has ${body.length} bytes; at most 1048576 are taken`);
    let text;
    try {
      text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body) || '{}';
      JSON.parse(text);
    } catch (error) {
      throw new CallError('InvalidRequest', `the body is not JSON: ${error.message}`);
    }
    return new Promise((resolve, reject) => {
      const done = (error, head, result) => (error ? reject(new CallError(error.reason, error.message, error.details, error.retryAfterMs)) : resolve([head, result]));
      one.invoke({ invocationId, body: text, deadline, done });
    });
  },

  async UnregisterFunction({ epoch, ifIdleForMs, drainMs, waitMs = 0 }) {
    checkPod(epoch);
    const closing = [...held].filter((one) => one.head.epoch.runUid === epoch.runUid && one.head.epoch.attempt <= epoch.attempt);
    if (ifIdleForMs != null && closing.some((one) => one.open && (one.inFlight || one.idleFor < ifIdleForMs))) throw new CallError('StillActive', 'it is not idle');
    bury(epoch);
    closing.forEach((one) => one.close(drainMs));
    const all = Promise.all(closing.map((one) => one.gone));
    if (waitMs) await Promise.race([all, sleep(waitMs)]);
    return [{ held: closing.length > 0, gone: closing.every((one) => one.released), inFlight: closing.reduce((sum, one) => sum + one.inFlight, 0) }];
  },

  async FunctionStatus({ registrationId, waitMs = 0, restartIdle }) {
    const one = find(registrationId);
    if (!one || one.state === 'loading') throw precondition('no such registration');
    if (restartIdle) one.idleSince = Date.now();
    const until = Date.now() + Math.min(waitMs, 60000);
    while (one.open && Date.now() < until) {
      const idleLeft = one.head.idleTimeoutMs ? one.head.idleTimeoutMs - one.idleFor : Infinity;
      if (idleLeft <= 0) break;
      await Promise.race([new Promise((wake) => one.watchers.add(wake)), sleep(Math.min(idleLeft, until - Date.now()))]);
    }
    const { reason = '', message = '' } = one.error || {};
    const state = one.open ? 'ready' : one.state;
    return [{ state, inFlight: one.inFlight, idleForMs: one.idleFor, workers: one.workers.size, reason, message }];
  },
};

for (const signal of ['SIGTERM', 'SIGINT']) {
  process.on(signal, async () => {
    [...held].forEach((one) => one.close(10000));
    await Promise.all([...held].map((one) => one.gone));
    fs.rmSync(process.env.KRUNTIMES_SOCKET, { force: true });
    process.exit(0);
  });
}
