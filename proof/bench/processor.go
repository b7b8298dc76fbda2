package main

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// processor returns the processor time that the server's process has used so far.
func (s *server) processor() time.Duration { return processTime(s.cmd.Process.Pid) }

// processor returns the processor time that this process and the database server
// have used so far: what the machine's other work disturbs less than the time that
// passes. 0 when it is not known.
func (b *contestants) processor() time.Duration {
	if b.pid == 0 {
		return 0
	}
	sum := processTime(os.Getpid()) + processTime(b.pid)
	for _, child := range childrenOf(b.pid) { // PostgreSQL has one for each connection
		sum += processTime(child)
	}
	return sum
}

// serves remembers the database server's process, which its pid file names.
func (b *contestants) serves(pidFile string) error {
	text, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	b.pid, err = strconv.Atoi(strings.TrimSpace(first))
	return err
}
