exports.invoke = () => ({ summary: 'no outputs' });
