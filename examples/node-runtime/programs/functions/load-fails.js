console.error('about to fail');
throw new Error('load failed on purpose');
