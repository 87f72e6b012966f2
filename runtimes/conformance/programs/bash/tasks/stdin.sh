cat
echo end
