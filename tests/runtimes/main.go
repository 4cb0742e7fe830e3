package main

// #cgo LDFLAGS: -ldl
// #include "calls.h"
import "C"
import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	runtime.LockOSThread()
	fmt.Println("answered", C.pairs(40))
	os.Exit(7)
}
