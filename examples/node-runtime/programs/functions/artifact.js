const fs = require('fs');
const path = require('path');
exports.invoke = (request) => {
  const folder = process.env.KRUNTIME_ARTIFACTS_DIR;
  const left = fs.readdirSync(folder).length;
  if ('put' in request) fs.writeFileSync(path.join(folder, 'a.txt'), request.put);
  if (request.fail) throw new Error('failed after it had put something');
  return { outputs: { left } };
};
