def invoke(request):
    return {"summary": "no outputs"}
