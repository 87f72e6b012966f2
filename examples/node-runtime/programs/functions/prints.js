exports.invoke = (request) => {
  for (let i = 0; i < request.lines; i++) console.log('line', i);
  console.error('error line');
  process.stdout.write('no newline');
  return { outputs: {} };
};
