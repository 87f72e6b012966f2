// One registered function: its workers, its calls, its folders. The rules are those of docs/runtime-contract.md.
'use strict';

const { spawn } = require('child_process');
const crypto = require('crypto');
const fs = require('fs');
const path = require('path');

const WAIT_MS = 2000; // for a worker that is being replaced (C21)
const LOG_LINE = 16384;
const LOG_CALL = 1048576;

class CallError extends Error {
  constructor(reason, message, details = {}, retryAfterMs = undefined) {
    super(message);
    this.head = { reason, message, details, retryAfterMs };
  }
}
const precondition = (why) => new CallError('FailedPrecondition', why);

class Function {
  constructor(head, work, onGone) {
    Object.assign(this, { head, work, onGone, id: crypto.randomUUID(), state: 'loading', inFlight: 0, workers: new Set(), waiting: [] });
    this.attempt = path.dirname(head.directory);
    this.private = path.join(this.attempt, 'private');
    this.failures = this.count = this.taken = 0;
    this.idleSince = Date.now();
    this.watchers = new Set();
    this.gone = new Promise((resolve) => { this.resolveGone = resolve; });
    for (const name of ['', 'home', 'tmp']) fs.mkdirSync(path.join(this.private, name), { recursive: true, mode: 0o700 });
    this.loaded = new Promise((resolve, reject) => { this.settle = (error) => (error ? reject(error) : resolve()); });
    this.loaded.catch(() => {});
    this.start();
  }

  get open() { return this.state === 'loading' || this.state === 'ready'; }
  get idleFor() { return this.inFlight ? 0 : Date.now() - this.idleSince; }

  // --- workers

  start() {
    const folder = path.join(this.private, `w${++this.count}`);
    const worker = { folder, number: this.count, token: crypto.randomUUID(), ready: false, call: null };
    fs.mkdirSync(path.join(folder, 'artifacts'), { recursive: true, mode: 0o700 });
    // Output goes to files: at the end of a call all of it is there, whoever still holds the other end.
    worker.output = ['stdout', 'stderr'].map((name) => fs.openSync(path.join(folder, name), 'a+', 0o600));
    const { epoch, env = {}, directory, handler } = this.head;
    const [, file, name] = /^(.*)\.([^.]*)$/.exec(handler);
    const shown = file.split('.').join('/') + '.js';
    worker.process = spawn(process.execPath, [path.join(__dirname, 'worker.js')], {
      cwd: directory,
      detached: true,
      stdio: ['ignore', ...worker.output, 'ipc'],
      env: {
        PATH: process.env.PATH, HOME: path.join(this.private, 'home'), TMPDIR: path.join(this.private, 'tmp'), LANG: 'C.UTF-8',
        KRUNTIME_RUN_UID: epoch.runUid, KRUNTIME_ATTEMPT: String(epoch.attempt), KRUNTIME_WORKER: worker.token,
        KRUNTIME_ARTIFACTS_DIR: path.join(folder, 'artifacts'), ...env,
      },
    });
    worker.process.on('error', () => {});
    worker.process.on('message', (message) => this.said(worker, message));
    worker.process.on('exit', (code, signal) => this.exited(worker, signal || `exit code ${code}`));
    worker.process.send({ file: path.join(directory, shown), shown, name }, () => {});
    this.workers.add(worker);
  }

  said(worker, { error, text }) {
    if (worker.killed) return;
    this.log(worker, worker.call ? worker.call.invocationId : '');
    if (worker.ready) {
      const call = worker.call;
      worker.call = null;
      this.end(call, error, text, error ? this.artifacts(worker, true) || '' : this.artifacts(worker));
    } else if (error) {
      worker.error = error;
      return this.kill(worker);
    } else {
      worker.ready = true;
      this.failures = 0;
      if (this.state === 'loading') {
        this.state = 'ready';
        this.idleSince = Date.now();
        this.settle();
      }
    }
    if (!this.open) return this.kill(worker);
    if (this.waiting.length) this.dispatch(worker, this.waiting.shift());
  }

  kill(worker) {
    worker.killed = true;
    strays(worker);
  }

  // Its group, and what left it, are gone before anything is said of it (C20).
  async exited(worker, how) {
    while (strays(worker)) await new Promise((resolve) => setTimeout(resolve, 5));
    this.log(worker, worker.call ? worker.call.invocationId : '');
    worker.output.forEach((fd) => fs.closeSync(fd));
    fs.rmSync(worker.folder, { recursive: true, force: true });
    this.workers.delete(worker);
    const call = worker.call;
    if (call && call.overdue) this.end(call, { reason: 'InvocationTimeout', message: 'the deadline passed; the process group is gone' });
    else if (call && worker.killed) this.end(call, { reason: 'OutcomeUnknown', message: 'the function was released during the call' });
    else if (call) this.end(call, { reason: 'WorkerCrashed', message: `the worker ended during the call: ${how}` });
    if (!worker.ready && this.open && !worker.unwanted) {
      const error = worker.error || { reason: 'ImportFailed', message: `the worker ended with ${how} while it loaded`, details: { stderr: how } };
      if (this.state === 'loading') this.finish('closing', error);
      else if (++this.failures >= 3) this.finish('lost', error);
    }
    if (this.open) this.want();
    else this.release();
  }

  want() {
    const starting = [...this.workers].filter((worker) => !worker.ready && !worker.killed).length;
    const missing = Math.max(this.waiting.length, this.workers.size ? 0 : 1) - starting;
    for (let i = 0; i < missing && this.workers.size < this.concurrency; i++) this.start();
  }

  get concurrency() { return this.head.concurrency || 1; }

  // --- calls

  invoke(call) {
    if (this.state !== 'ready') throw precondition(`the registration is ${this.state}`);
    if (this.inFlight >= this.concurrency) throw new CallError('TooManyInvocations', `${this.inFlight} calls are in flight`, {}, 1000);
    this.inFlight++;
    const free = [...this.workers].find((worker) => worker.ready && !worker.call && !worker.killed);
    if (free) return this.dispatch(free, call);
    call.timer = setTimeout(() => {
      this.waiting.splice(this.waiting.indexOf(call), 1);
      this.end(call, { reason: 'WorkerStarting', message: `no worker within ${WAIT_MS} ms; the call did not run`, retryAfterMs: 1000 });
    }, Math.min(WAIT_MS, call.deadline - Date.now()));
    this.waiting.push(call);
    this.want();
  }

  dispatch(worker, call) {
    clearTimeout(call.timer);
    worker.call = call;
    call.started = process.hrtime.bigint();
    call.timer = setTimeout(() => { call.overdue = true; this.kill(worker); }, Math.max(0, call.deadline - Date.now()));
    worker.process.send({ body: call.body }, () => {});
  }

  end(call, error, text, artifacts) {
    clearTimeout(call.timer);
    this.inFlight--;
    this.idleSince = Date.now();
    const workerUs = call.started ? Number((process.hrtime.bigint() - call.started) / 1000n) : 0;
    call.done(error, { workerUs, artifacts: artifacts || undefined }, text);
  }

  // What the call left goes with its answer, or away (C33).
  artifacts(worker, drop = false) {
    const folder = path.join(worker.folder, 'artifacts');
    if (!fs.existsSync(folder) || !fs.readdirSync(folder).length) return '';
    const name = `${worker.number}-${++this.taken}`;
    const kept = path.join(this.attempt, 'artifacts', name);
    fs.mkdirSync(path.dirname(kept), { recursive: true, mode: 0o700 });
    fs.renameSync(folder, kept);
    fs.mkdirSync(folder, { mode: 0o700 });
    if (drop) fs.rmSync(kept, { recursive: true, force: true });
    return drop ? '' : name;
  }

  log(worker, invocation) {
    const { epoch } = this.head;
    const line = (stream, text, cut = false) =>
      JSON.stringify({ time: new Date().toISOString(), stream, invocation, attempt: epoch.attempt, line: text.slice(0, LOG_LINE), cut: cut || text.length > LOG_LINE });
    const lines = worker.output.flatMap((fd, index) => {
      const size = fs.fstatSync(fd).size;
      const data = Buffer.alloc(Math.min(size, LOG_CALL));
      if (!size) return [];
      fs.readSync(fd, data, 0, data.length, 0);
      fs.ftruncateSync(fd);
      const stream = ['stdout', 'stderr'][index];
      const found = data.toString().replace(/\n$/, '').split('\n').map((text) => line(stream, text));
      return size > LOG_CALL ? [...found, line('system', `[cut: more than ${LOG_CALL} bytes of ${stream}]`, true)] : found;
    });
    if (!lines.length) return;
    fs.mkdirSync(path.join(this.work, 'logs'), { recursive: true, mode: 0o700 });
    fs.appendFileSync(path.join(this.work, 'logs', `${epoch.runUid}.ndjson`), lines.join('\n') + '\n', { mode: 0o600 });
  }

  // --- release

  close(drainMs) {
    if (drainMs !== undefined && drainMs !== null) setTimeout(() => [...this.workers].forEach((worker) => this.kill(worker)), drainMs).unref();
    if (this.open) this.finish('closing', precondition('the epoch was closed while it loaded').head);
  }

  finish(state, error) {
    if (this.state === 'loading') this.settle(new CallError(error.reason, error.message, error.details));
    Object.assign(this, { state, error });
    this.watchers.forEach((wake) => wake());
    for (const call of this.waiting.splice(0)) this.end(call, precondition('the registration is closed; the call did not run').head);
    for (const worker of this.workers) if (!worker.call) { worker.unwanted = true; this.kill(worker); }
    this.release();
  }

  release() {
    if (this.workers.size || this.released) return;
    this.released = true;
    fs.rmSync(this.private, { recursive: true, force: true });
    this.onGone(this);
    this.resolveGone();
  }
}

// Kill every process that has the worker's token in its environment; whether there was one.
function strays(worker) {
  let found = false;
  for (const pid of fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      if (!fs.readFileSync(`/proc/${pid}/environ`).includes(`KRUNTIME_WORKER=${worker.token}`)) continue;
      process.kill(Number(pid), 'SIGKILL');
      found = true;
    } catch { /* it has ended, or is another user's */ }
  }
  return found;
}

module.exports = { Function, CallError, precondition };
