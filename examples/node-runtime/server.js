// A Runtime Server for JavaScript functions: KRUNTIMES_SOCKET=… KRUNTIMES_WORK_DIR=… node server.js
//
// Numbers in comments are lines of docs/runtime-contract.md. frames.js is the wire, worker.js runs the handlers.
'use strict';

const { fork } = require('child_process');
const crypto = require('crypto');
const fs = require('fs');
const path = require('path');
const { setTimeout: sleep } = require('timers/promises');
const { encode } = require('./msgpack');
const { CallError, listen } = require('./frames');

const { KRUNTIMES_SOCKET: SOCKET, KRUNTIMES_WORK_DIR: WORK, PATH } = process.env;
const [BODY_MAX, LINE_MAX, LOG_MAX, WORKER_WAIT_MS, LOOK_MS] = [1048576, 16384, 1048576, 2000, 5];
const startedBoottimeUs = Math.round(parseFloat(fs.readFileSync('/proc/uptime', 'utf8')) * 1e6);
const held = new Set();
const tombstones = new Map(); // Run UID -> the highest attempt that was closed
const instanceId = process.argv[2] || crypto.randomUUID();
let condemned = '';
let guard;

const closed = (message) => new CallError('FailedPrecondition', message);
const ofRun = ({ runUid }) => [...held].filter((one) => one.head.epoch.runUid === runUid);

// Kills every process that has this mark in its environment, wherever it went; whether there was one.
function killMarked(mark) {
  let found = false;
  for (const pid of fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      if (!fs.readFileSync(`/proc/${pid}/environ`).includes(`KRUNTIME_WORKER=${mark}`)) continue;
      process.kill(Number(pid), 'SIGKILL');
      found = true;
    } catch { /* It has ended, or is another user's. */ }
  }
  return found;
}

async function until(done, ms = Infinity) {
  for (const end = Date.now() + ms; !done() && Date.now() < end;) await sleep(LOOK_MS);
}

class Registration {
  constructor(head) {
    Object.assign(this, { head, id: crypto.randomUUID(), state: 'loading', inFlight: 0, idleSince: Date.now() });
    Object.assign(this, { workers: new Set(), started: 0, failures: 0, taken: 0, beside: path.dirname(head.directory) });
    for (const name of ['home', 'tmp', 'calls']) fs.mkdirSync(path.join(this.beside, name), { mode: 0o700 });
    this.start();
  }

  get open() { return this.state === 'loading' || this.state === 'ready'; }
  get idleForMs() { return this.inFlight ? 0 : Date.now() - this.idleSince; }
  get most() { return this.head.concurrency || 1; }

  start() {
    const { epoch, env, directory, handler } = this.head;
    const worker = { number: ++this.started, mark: `${instanceId}/${this.id}/${this.started};`, invocation: '' };
    worker.folder = path.join(this.beside, 'calls', String(worker.number));
    worker.left = path.join(worker.folder, 'artifacts');
    fs.mkdirSync(worker.left, { recursive: true, mode: 0o700 });
    // Output goes to files: at the end of a call all of it is there, whoever still holds the other end (C22).
    worker.output = ['stdout', 'stderr'].map((name) => fs.openSync(path.join(worker.folder, name), 'a+', 0o600));
    const [, file, name] = /^(.*)\.([^.]*)$/.exec(handler);
    const args = [path.join(directory, file.replaceAll('.', '/') + '.js'), name, String(BODY_MAX)];
    worker.process = fork(path.join(__dirname, 'worker.js'), args, {
      cwd: directory, detached: true, stdio: ['ignore', ...worker.output, 'ipc'],
      env: { // C14
        PATH, HOME: path.join(this.beside, 'home'), TMPDIR: path.join(this.beside, 'tmp'), LANG: 'C.UTF-8',
        KRUNTIME_RUN_UID: epoch.runUid, KRUNTIME_ATTEMPT: String(epoch.attempt), KRUNTIME_WORKER: worker.mark,
        KRUNTIME_ARTIFACTS_DIR: worker.left, ...env,
      },
    });
    worker.process.on('message', (said) => this.loaded(worker, said));
    worker.process.on('exit', (code, signal) => this.exited(worker, signal || `exit code ${code}`));
    this.workers.add(worker);
  }

  loaded(worker, { error }) {
    if (worker.ready || worker.killed) return;
    this.log(worker);
    if (error) return worker.error = error, this.kill(worker);
    worker.ready = true;
    this.failures = 0;
    if (this.state === 'loading') Object.assign(this, { state: 'ready', idleSince: Date.now() });
  }

  kill(worker) {
    worker.killed = true;
    killMarked(worker.mark);
  }

  async exited(worker, how) { // C20: its group, and what left it, are gone before anything is said of it.
    while (killMarked(worker.mark)) await sleep(LOOK_MS);
    this.log(worker);
    worker.output.forEach((fd) => fs.closeSync(fd));
    fs.rmSync(worker.folder, { recursive: true, force: true });
    this.workers.delete(worker);
    if (worker.ended) worker.ended(how);
    if (!worker.ready && this.open) {
      const message = `it ended with ${how} while it loaded`;
      const error = worker.error || { reason: 'ImportFailed', message, details: { stderr: how } };
      if (this.state === 'loading') this.close('closing', error);
      else if (++this.failures > 2) this.close('lost', error);
    }
    if (this.open && !this.workers.size) this.start(); // C21
    if (!this.open) this.release();
  }

  // C15 to C21: one process for each call in flight; one more is refused.
  async invoke(invocation, text, deadline) {
    if (this.state !== 'ready') throw closed(`the registration is ${this.state}`);
    if (this.inFlight >= this.most) throw new CallError('TooManyInvocations', `${this.inFlight} are in flight`, {}, 1000);
    this.inFlight++;
    try {
      const free = () => [...this.workers].find((worker) => worker.ready && !worker.ended && !worker.killed);
      if (!free() && this.workers.size < this.most) this.start();
      await until(() => free() || !this.open, Math.min(WORKER_WAIT_MS, deadline - Date.now()));
      if (!this.open) throw closed(`the registration is ${this.state}; the call did not run`);
      if (!free()) throw new CallError('WorkerStarting', `no worker within ${WORKER_WAIT_MS} ms; it did not run`, {}, 1000);
      return await this.run(free(), invocation, text, deadline);
    } finally {
      this.inFlight--;
      this.idleSince = Date.now();
    }
  }

  async run(worker, invocation, text, deadline) {
    const began = process.hrtime.bigint();
    const overdue = setTimeout(() => { worker.overdue = true; this.kill(worker); }, deadline - Date.now());
    worker.invocation = invocation;
    const said = await new Promise((resolve) => {
      const crashed = { reason: 'WorkerCrashed', message: 'the worker ended during the call: ' };
      worker.ended = (how) => resolve({ error: { ...crashed, message: crashed.message + how } });
      worker.process.once('message', (message) => worker.killed || resolve(message));
      worker.process.send(text, () => {});
    });
    clearTimeout(overdue);
    if (worker.overdue) throw new CallError('InvocationTimeout', 'the deadline passed; every process of the call is gone');
    if (worker.killed) throw new CallError('OutcomeUnknown', 'the function was released during the call');
    const artifacts = this.workers.has(worker) ? this.handOver(worker, Boolean(said.error)) : undefined;
    if (this.workers.has(worker)) this.log(worker);
    Object.assign(worker, { ended: null, invocation: '' });
    if (!this.open) this.kill(worker);
    if (said.error) throw new CallError(said.error.reason, said.error.message, said.error.details);
    return [{ workerUs: Number((process.hrtime.bigint() - began) / 1000n), artifacts }, said.text];
  }

  handOver(worker, failed) { // C33
    if (!fs.existsSync(worker.left) || !fs.readdirSync(worker.left).length) return undefined;
    const name = `${worker.number}-${++this.taken}`;
    const kept = path.join(this.beside, 'artifacts', name);
    fs.mkdirSync(path.dirname(kept), { recursive: true, mode: 0o700 });
    fs.renameSync(worker.left, kept);
    fs.mkdirSync(worker.left, { mode: 0o700 });
    if (failed) fs.rmSync(kept, { recursive: true, force: true });
    return failed ? undefined : name;
  }

  log({ output, invocation }) { // C23
    const { attempt, runUid } = this.head.epoch;
    const line = (stream, text, cut = text.length > LINE_MAX) =>
      JSON.stringify({ time: new Date().toISOString(), stream, invocation, attempt, line: text.slice(0, LINE_MAX), cut }) + '\n';
    const lines = output.flatMap((fd, index) => {
      const { size } = fs.fstatSync(fd);
      const data = Buffer.alloc(Math.min(size, LOG_MAX));
      fs.readSync(fd, data, 0, data.length, 0);
      fs.ftruncateSync(fd);
      const stream = ['stdout', 'stderr'][index];
      const found = size ? data.toString().replace(/\n$/, '').split('\n').map((text) => line(stream, text)) : [];
      return size > LOG_MAX ? [...found, line('system', `[cut: more than ${LOG_MAX} bytes of ${stream}]`, true)] : found;
    });
    if (!lines.length) return;
    fs.mkdirSync(path.join(WORK, 'logs'), { recursive: true, mode: 0o700 });
    fs.appendFileSync(path.join(WORK, 'logs', `${runUid}.ndjson`), lines.join(''), { mode: 0o600 });
  }

  close(state = 'closing', error = closed('the epoch was closed').head, drainMs = undefined) { // C24
    if (this.open) Object.assign(this, { state, error, failed: this.state === 'loading' });
    if (drainMs != null) setTimeout(() => this.workers.forEach((worker) => this.kill(worker)), drainMs).unref();
    for (const worker of this.workers) if (!worker.ended) this.kill(worker);
    this.release();
  }

  release() {
    if (this.workers.size) return;
    for (const name of ['home', 'tmp', 'calls']) fs.rmSync(path.join(this.beside, name), { recursive: true, force: true });
    held.delete(this);
  }
}

// --- methods

const need = (good, why) => { if (!good) throw new CallError('InvalidArgument', why); };
const bury = ({ runUid, attempt }) => tombstones.set(runUid, Math.max(attempt, tombstones.get(runUid) || 0));
const allGone = (some) => some.every((one) => !held.has(one));
const find = (id) => [...held].find((one) => one.id === id && one.state !== 'loading');

function digest({ epoch, handler, env, idleTimeoutMs, concurrency = 1 }) { // C10
  const sorted = Object.entries(env).sort(([one], [other]) => Buffer.compare(Buffer.from(one), Buffer.from(other)));
  const value = ['function', [epoch.runUid, epoch.attempt, epoch.podUid], handler, sorted, idleTimeoutMs ?? null, concurrency];
  return crypto.createHash('sha256').update(encode(value)).digest('hex');
}

function check(head) {
  const { epoch, directory, handler, env, concurrency = 1 } = head;
  need(epoch && typeof epoch.runUid === 'string' && typeof epoch.podUid === 'string' && epoch.attempt >= 1, 'epoch');
  need(typeof handler === 'string' && handler.includes('.'), 'handler is file.function');
  need(Number.isInteger(concurrency) && concurrency >= 1 && concurrency <= 64, 'concurrency is 1 to 64');
  need(Object.keys(env).every((name) => name && !name.includes('=')), 'a name in env');
  need(typeof directory === 'string' && path.resolve(directory).startsWith(path.resolve(WORK) + path.sep), `directory is below ${WORK}`);
  need(fs.existsSync(directory), 'directory is a folder');
  need(head.digest === digest(head), `the digest is ${digest(head)}`);
}

function checkPod({ runUid, attempt, podUid }) {
  const other = ofRun({ runUid }).some((one) => one.head.epoch.attempt === attempt && one.head.epoch.podUid !== podUid);
  if (other) throw closed('another Pod has this attempt');
}

const methods = {
  async Hello({ versions }) { // C7
    need(Array.isArray(versions) && versions.every(Number.isInteger), 'versions are whole numbers');
    if (!versions.includes(1)) throw new CallError('UnsupportedVersion', 'this server speaks 1');
    const epochs = [...held].map(({ head, open, id }) => ({ epoch: head.epoch, kind: 'function', open, registrationId: id }));
    return [{ version: 1, language: 'node', defaultScript: 'main.js', instanceId, startedBoottimeUs, held: epochs }];
  },

  async Alive({ condemn }) { // C8
    condemned = condemned || condemn || '';
    if (condemned) throw new CallError('Unhealthy', condemned);
    return [{ instanceId }];
  },

  async RegisterFunction(head, body, deadline) { // C10 to C13
    head.env = head.env || {};
    check(head);
    const { epoch, handler, directory } = head;
    checkPod(epoch);
    const mine = () => ofRun(epoch).find((one) => one.head.epoch.attempt === epoch.attempt);
    await until(() => !mine() || mine().open || tombstones.has(epoch.runUid)); // One that failed is being removed.
    const newest = Math.max(tombstones.get(epoch.runUid) || 0, ...ofRun(epoch).map((one) => one.head.epoch.attempt - 1));
    if (epoch.attempt <= newest) throw closed('this attempt is over');
    if (mine() && mine().head.digest !== head.digest) throw new CallError('AlreadyExists', 'this epoch has another digest');
    if (!mine()) {
      const file = handler.slice(0, handler.lastIndexOf('.')).replaceAll('.', '/') + '.js';
      if (!fs.existsSync(path.join(directory, file))) throw new CallError('SourceInvalid', `no file ${file} in the source`);
      for (const older of ofRun(epoch)) bury(older.head.epoch), older.close();
      held.add(new Registration(head));
    }
    const one = mine();
    await until(() => one.state !== 'loading', deadline - Date.now());
    if (one.state === 'loading') one.close('closing', { reason: 'RegistrationTimedOut', message: 'the load took too long' });
    if (!one.failed) return [{ registrationId: one.id }];
    await until(() => !held.has(one));
    throw new CallError(one.error.reason, one.error.message, one.error.details);
  },

  async InvokeFunction({ registrationId, invocationId }, body, deadline) { // C15 to C17
    const one = find(registrationId);
    if (!one) throw closed('no such registration');
    if (body.length > BODY_MAX) throw new CallError('RequestTooLarge', `${body.length} bytes; at most ${BODY_MAX} are taken`);
    let text = '{}';
    try {
      text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(body) || text;
      JSON.parse(text);
    } catch (error) {
      throw new CallError('InvalidRequest', `the body is not JSON: ${error.message}`);
    }
    return one.invoke(invocationId, text, deadline);
  },

  async UnregisterFunction({ epoch, ifIdleForMs, drainMs, waitMs = 0 }) { // C24, C25
    checkPod(epoch);
    const closing = ofRun(epoch).filter((one) => one.head.epoch.attempt <= epoch.attempt);
    const busy = closing.some((one) => one.open && (one.inFlight || one.idleForMs < ifIdleForMs));
    if (ifIdleForMs != null && busy) throw new CallError('StillActive', 'it is not idle');
    bury(epoch);
    closing.forEach((one) => one.close(undefined, undefined, drainMs));
    await until(() => allGone(closing), waitMs);
    return [{ held: closing.length > 0, gone: allGone(closing), inFlight: closing.reduce((sum, one) => sum + one.inFlight, 0) }];
  },

  async FunctionStatus({ registrationId, waitMs = 0, restartIdle }) { // C26
    const one = find(registrationId);
    if (!one) throw closed('no such registration');
    if (restartIdle) one.idleSince = Date.now();
    await until(() => !one.open || one.idleForMs >= (one.head.idleTimeoutMs ?? Infinity), Math.min(waitMs, 60000));
    const { state, inFlight, idleForMs, workers: { size: workers }, error: { reason, message } = {} } = one;
    return [{ state, inFlight, idleForMs, workers, reason, message }];
  },
};

async function handle(method, parameters, body, deadline) {
  if (!Object.hasOwn(methods, method)) throw new CallError('UnknownMethod', `no method ${method}`);
  need(parameters !== null && typeof parameters === 'object', 'parameters are a map');
  return methods[method](parameters, body, deadline);
}

async function stop() { // C9
  held.forEach((one) => one.close('closing', undefined, 10000));
  await until(() => !held.size);
  fs.rmSync(SOCKET, { force: true });
  guard.on('exit', () => process.exit(0)).kill('SIGKILL');
}

if (process.argv[2]) { // C9: a second process outlives the first by as long as it takes to end what that one left.
  process.on('disconnect', async () => {
    while (killMarked(`${instanceId}/`)) await sleep(LOOK_MS);
    process.exit(0);
  });
} else {
  guard = fork(__filename, [instanceId], { detached: true, env: {} });
  const runs = path.join(WORK, 'runs');
  for (const left of fs.existsSync(runs) ? fs.readdirSync(runs, { recursive: true }) : []) {
    if (/^[^/]+\/[^/]+\/(home|tmp|calls)$/.test(left)) fs.rmSync(path.join(runs, left), { recursive: true, force: true });
  }
  fs.rmSync(SOCKET, { force: true });
  for (const signal of ['SIGTERM', 'SIGINT']) process.on(signal, stop);
  listen(SOCKET, handle);
}
