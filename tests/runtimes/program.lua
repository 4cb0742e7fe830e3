package.cpath = arg[1] .. "/?.so"
print("answered " .. require("calls"))
os.exit(7)
