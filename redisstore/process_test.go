package redisstore

import (
	"io"
)

// children are what this test binary does when it is started as another process
// with the variable childVar set. They end when their standard input does.
var children = map[string]func(addr string, input io.Reader) error{}

const (
	childVar = "REDISSTORE_TEST_CHILD"
	addrVar  = "REDISSTORE_TEST_ADDR"
)
