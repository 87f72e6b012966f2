const fs = require('fs');
const { spawnSync } = require('child_process');
exports.invoke = () => {
  console.log('noise');
  fs.writeSync(1, '{"outputs": {"forged": 1}}');
  spawnSync('sh', ['-c', 'echo child noise; echo child error >&2'], { stdio: 'inherit' });
  return { outputs: { true: 1 } };
};
