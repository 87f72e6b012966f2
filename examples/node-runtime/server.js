// A Runtime Server for JavaScript functions: KRUNTIMES_SOCKET=… KRUNTIMES_WORK_DIR=… node server.js
import { isUtf8 } from 'node:buffer';
import { createHash, randomUUID } from 'node:crypto';
import fs from 'node:fs';
import { encode } from '@msgpack/msgpack';
import { listen } from './frames.js';
import { Registration, fail, held, need, until } from './registration.js';

const { KRUNTIMES_SOCKET: SOCKET, KRUNTIMES_WORK_DIR: WORK } = process.env;
const [BODY_MAX, CONCURRENCY_MAX, DRAIN_MS] = [1048576, 64, 10000];
const instanceId = randomUUID();
const startedBoottimeUs = Math.round(parseFloat(fs.readFileSync('/proc/uptime', 'utf8')) * 1e6);
const tombstones = new Map(); // Run UID -> the highest attempt that was closed
let condemned = '';

function find(id) { // C17
  const one = [...held].find((other) => other.id === id && other.state !== 'loading');
  need(one, 'FailedPrecondition', 'no such registration');
  return one;
}

// What is held of the Run up to this attempt, which is one Pod's (C11).
function heldUpTo({ runUid, attempt, podUid }) {
  const some = [...held].filter(({ epoch }) => epoch.runUid === runUid && epoch.attempt <= attempt);
  const mine = some.every(({ epoch }) => epoch.attempt < attempt || epoch.podUid === podUid);
  need(mine, 'FailedPrecondition', 'another Pod has this attempt');
  return some;
}

function check({ epoch, directory, handler, env = {}, idleTimeoutMs = null, concurrency = 1, digest }) { // C10
  const variables = Object.entries(env).sort(([a], [b]) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
  need(/.\.[^.]+$/.test(handler), 'InvalidArgument', 'handler is file.function');
  need(concurrency >= 1 && concurrency <= CONCURRENCY_MAX, 'InvalidArgument', 'concurrency');
  need(directory.startsWith(`${WORK}/`), 'InvalidArgument', `directory is below ${WORK}`);
  need(!variables.some(([name]) => name.includes('=')), 'InvalidArgument', 'a name in env');
  const { runUid, attempt, podUid } = epoch;
  const value = ['function', [runUid, attempt, podUid], handler, variables, idleTimeoutMs, concurrency];
  const right = createHash('sha256').update(encode(value)).digest('hex');
  need(digest === right, 'InvalidArgument', `the digest is ${right}`);
}

const methods = {
  Hello({ versions }) { // C7
    need(versions.every(Number.isInteger), 'InvalidArgument', 'versions are whole numbers');
    need(versions.includes(1), 'UnsupportedVersion', 'this server speaks 1');
    const kind = 'function';
    const functions = [...held].map(({ epoch, open, id }) => ({ epoch, kind, open, registrationId: id }));
    const me = { version: 1, language: 'node', defaultScript: 'main.js', instanceId, startedBoottimeUs };
    return [{ ...me, held: functions }];
  },

  Alive({ condemn = '' }) { // C8
    condemned ||= condemn;
    need(!condemned, 'Unhealthy', condemned);
    return [{ instanceId }];
  },

  async RegisterFunction(request, body, deadline) { // C10 to C13
    check(request);
    const { epoch: { runUid, attempt }, digest } = request;
    const older = heldUpTo(request.epoch);
    need(attempt > (tombstones.get(runUid) ?? 0), 'FailedPrecondition', 'this attempt is over');
    let one = older.find(({ epoch }) => epoch.attempt === attempt);
    need(!one || one.request.digest === digest, 'AlreadyExists', 'it has another digest');
    if (!one) {
      one = new Registration(request);
      tombstones.set(runUid, attempt - 1);
      older.forEach((other) => other.close());
    }
    await until(() => one.state !== 'loading', deadline);
    if (one.state === 'loading') one.close({ reason: 'RegistrationTimedOut', message: 'the load took too long' });
    await until(() => one.state !== 'closing' || !held.has(one));
    if (!one.open) fail(one.error);
    return [{ registrationId: one.id }];
  },

  InvokeFunction({ registrationId, invocationId }, body, deadline) { // C15 to C21
    const one = find(registrationId);
    need(body.length <= BODY_MAX, 'RequestTooLarge', `at most ${BODY_MAX} bytes are taken`);
    need(isUtf8(body), 'InvalidRequest', 'the body is not UTF-8');
    return one.invoke(invocationId, String(body) || '{}', deadline);
  },

  async UnregisterFunction({ epoch, ifIdleForMs = null, drainMs, waitMs = 0 }) { // C24, C25
    const closing = heldUpTo(epoch);
    const busy = closing.some((one) => one.open && (one.inFlight || one.idleForMs < ifIdleForMs));
    need(ifIdleForMs === null || !busy, 'StillActive', 'it is not idle');
    tombstones.set(epoch.runUid, Math.max(epoch.attempt, tombstones.get(epoch.runUid) ?? 0));
    closing.forEach((one) => one.close(undefined, drainMs));
    const gone = () => !closing.some((one) => held.has(one));
    await until(gone, Date.now() + waitMs);
    const inFlight = closing.reduce((sum, one) => sum + one.inFlight, 0);
    return [{ held: closing.length > 0, gone: gone(), inFlight }];
  },

  async FunctionStatus({ registrationId, waitMs = 0, restartIdle }) { // C26
    const one = find(registrationId);
    if (restartIdle) one.idleSince = Date.now();
    await until(() => !one.open || one.idleForMs >= (one.idleTimeoutMs ?? Infinity), Date.now() + waitMs);
    const { state, inFlight, idleForMs, workers, error } = one;
    return [{ state, inFlight, idleForMs, workers: workers.size, ...error }];
  },
};

process.on('SIGTERM', async () => { // C9
  held.forEach((one) => one.close(undefined, DRAIN_MS));
  await until(() => !held.size);
  fs.rmSync(SOCKET);
  process.exit();
});
process.on('uncaughtException', console.error); // One function's trouble is not another's.
fs.rmSync(SOCKET, { force: true });
listen(SOCKET, async (method, parameters, body, deadline) => {
  need(Object.hasOwn(methods, method), 'UnknownMethod', `no method ${method}`);
  return methods[method](parameters, body, deadline);
});
