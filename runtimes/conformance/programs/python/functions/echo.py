def invoke(request):
    return {"outputs": {"request": request}}
