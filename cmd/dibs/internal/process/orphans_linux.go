package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// adopt makes this program the parent of each process below it whose own parent ends. It reports
// whether it did. Otherwise the first process of the container would get them, which may never
// reap them: a zombie is a member of its group like any process.
func adopt() bool { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == nil }

// onlyZombies reports whether all processes of a group are zombies. Their parents have left the
// group and live, so this program cannot reap them. It is false if /proc cannot say that.
func onlyZombies(group int) bool {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return false // it is not mounted, or it shows the processes of another namespace
	}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	zombies := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		switch of, zombie := member(text); {
		case of != group:
		case !zombie:
			return false
		default:
			zombies++
		}
	}
	return zombies > 0
}

// member reads the line that /proc has of a process: its group, and whether it is a zombie. A
// process whose first thread has ended looks like one, but has more threads.
func member(stat []byte) (group int, zombie bool) {
	const state, pgrp, threads = 0, 2, 17 // after the name, which is in brackets and can have blanks and brackets
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) <= threads {
		return 0, false
	}
	group, _ = strconv.Atoi(fields[pgrp])
	more, _ := strconv.Atoi(fields[threads])
	return group, (fields[state] == "Z" || fields[state] == "X") && more <= 1
}
