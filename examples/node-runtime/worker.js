// One worker: loads the handler, then answers one call after the other over the IPC channel, which no child of it has.
'use strict';

const LIMIT = 1048576;
const EXPECTED = 'expected an object {"outputs": {...}, "artifactRefs": [...]} with no other keys';
let handler;

function failure(reason, error) {
  const message = error instanceof Error ? `${error.name}: ${error.message}` : String(error) || reason;
  return { reason, message, details: { frames: String((error && error.stack) || message).slice(0, 8192) } };
}

function load({ file, shown, name }) {
  let module;
  try {
    module = require(file);
  } catch (error) {
    return { error: failure('ImportFailed', error) };
  }
  if (typeof module[name] !== 'function') {
    return { error: { reason: 'HandlerNotFound', message: `${shown} exports no function ${name}`, details: {} } };
  }
  handler = module[name];
  return {};
}

async function invoke(body) {
  let result;
  try {
    result = await handler(JSON.parse(body));
  } catch (error) {
    return { error: failure('HandlerFailed', error) };
  }
  let text;
  try {
    const keys = Object.keys(result);
    if (Array.isArray(result) || keys.some((key) => key !== 'outputs' && key !== 'artifactRefs')) throw new Error(`got the keys ${keys}`);
    text = JSON.stringify({ outputs: {}, ...result });
  } catch (error) {
    return { error: failure('HandlerResultInvalid', `${EXPECTED}: ${error}`) };
  }
  const size = Buffer.byteLength(text);
  if (size > LIMIT) return { error: failure('ResponseTooLarge', `the result has ${size} bytes; at most ${LIMIT} are answered`) };
  return { text };
}

process.on('message', async (message) => {
  process.send(message.file ? load(message) : await invoke(message.body));
});
process.on('disconnect', () => process.exit(0)); // the server is gone
