const { spawn } = require('child_process');
exports.invoke = () => {
  spawn('sleep', ['300'], { stdio: 'inherit' });
  return { outputs: { left: 'one' } };
};
