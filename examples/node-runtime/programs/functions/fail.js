exports.invoke = () => { throw new Error('the cause of it'); };
