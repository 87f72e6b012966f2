const fs = require('fs');
const { spawn } = require('child_process');
exports.invoke = (request) => {
  for (const detached of [false, true]) spawn('sleep', ['300'], { stdio: 'inherit', detached });
  spawn('sh', ['-c', 'setsid sleep 300 &'], { stdio: 'inherit' });
  fs.writeFileSync(request.started, String(process.pid));
  return new Promise((resolve) => setTimeout(resolve, 300000));
};
