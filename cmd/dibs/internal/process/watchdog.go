//go:build unix

package process

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

// watchdogArg, as the program's first argument, makes it a watchdog. A second argument is the
// group to watch from outside, after another watchdog; see succeed.
const watchdogArg = "__watchdog"

// The messages between a program and its watchdog, a line each.
const (
	// wordReady is the watchdog's first message.
	wordReady = "ready"
	// wordAside asks the watchdog to leave the group and to go on watching it. The
	// watchdog answers with the same word.
	wordAside = "aside"
)

// joinGrace is how long a new process may take to join its group.
const joinGrace = 20 * time.Millisecond

// Watchdog makes this process a watchdog if its arguments say so, and does not return then.
// A program that uses this package calls Watchdog first in main.
func Watchdog() {
	if len(os.Args) < 2 || len(os.Args) > 3 || os.Args[1] != watchdogArg {
		return
	}
	// Signals to the group are for the command.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE)
	group, says := syscall.Getpgrp(), wordReady
	if len(os.Args) == 3 {
		var err error
		if group, err = strconv.Atoi(os.Args[2]); err != nil || group <= 1 {
			os.Exit(1) // because -1 and 0 are other processes
		}
		says = wordAside
	}
	fmt.Println(says)
	words := bufio.NewScanner(os.Stdin)
	for words.Scan() {
		aside, ok := parentGroup(words.Text())
		if !ok {
			os.Exit(0) // dismissed
		}
		// The parent's group is 0 if it is from outside of the namespace, so it cannot be joined.
		if (aside == 0 || syscall.Setpgid(0, aside) != nil) && succeed(group) == nil {
			os.Exit(0) // the successor has answered
		}
		fmt.Println(wordAside)
	}
	// A command that was being started at that moment joins the group within this time.
	time.Sleep(joinGrace)
	_ = syscall.Kill(-group, syscall.SIGKILL)
	os.Exit(1)
}

// succeed starts a watchdog in a group of its own, which continues in place of this one and with its
// pipes. A group's leader cannot leave for a new group.
func succeed(group int) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, watchdogArg, strconv.Itoa(group)) //nolint:noctx // ended by dismiss
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
	return cmd.Start()
}

// parentGroup reads the group that the watchdog moves to.
func parentGroup(line string) (int, bool) {
	var word string
	var group int
	n, err := fmt.Sscan(line, &word, &group)
	return group, err == nil && n == 2 && word == wordAside
}

// watchdog is the program's side of its watchdog.
type watchdog struct {
	cmd   *exec.Cmd
	words io.WriteCloser
	reply *bufio.Reader
	group int
}

func startWatchdog() (*watchdog, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	w := &watchdog{cmd: exec.Command(self, watchdogArg)} //nolint:noctx // ended by dismiss
	w.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	w.cmd.Env = []string{"GOMAXPROCS=1"}
	if w.words, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	w.reply = bufio.NewReader(out)
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	w.group = w.cmd.Process.Pid
	if err := w.expect(wordReady); err != nil {
		w.dismiss()
		return nil, err
	}
	return w, nil
}

// stepAside makes the watchdog leave the group, so that the group is empty when the command
// and its children have ended. The watchdog continues watching it.
func (w *watchdog) stepAside() error {
	if _, err := io.WriteString(w.words, wordAside+" "+strconv.Itoa(syscall.Getpgrp())+"\n"); err != nil {
		return err
	}
	return w.expect(wordAside)
}

func (w *watchdog) expect(word string) error {
	line, err := w.reply.ReadString('\n')
	if err == nil && line != word+"\n" {
		err = errors.New("the watchdog answered " + strconv.Quote(line))
	}
	return err
}

// dismiss ends the watchdog. The group continues.
func (w *watchdog) dismiss() {
	_, _ = io.WriteString(w.words, "dismissed\n")
	_ = w.words.Close()
	_ = w.cmd.Wait()
}
