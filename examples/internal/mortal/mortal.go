// Package mortal has processes that are killed (SIGKILL) at the worst moment, and those
// that take their place: this program, run again with arguments. It is for Unix.
package mortal

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
)

// doomed is set in the environment of the process that is to be killed.
const doomed = "DIBS_EXAMPLE_DOOMED"

// Keep has a server that is killed at its Moment, and the one that takes its place
// until ctx ends. They run this program with args, which is to call Serve, on one
// socket, as behind a load balancer: who connects while there is no server waits for the
// next. It always returns an error.
func Keep(ctx context.Context, listener *net.TCPListener, args ...string) error {
	socket, err := listener.File()
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := kill(ctx, []*os.File{socket}, args); err != nil {
		return err
	}
	return run(ctx, []*os.File{socket}, args)
}

// Kill runs this program with args, and kills it when it has come to the Moment.
func Kill(ctx context.Context, args ...string) error { return kill(ctx, nil, args) }

// Run runs this program with args until ctx ends. It returns an error only if the
// program ended before.
func Run(ctx context.Context, args ...string) error {
	if err := run(ctx, nil, args); ctx.Err() == nil {
		return fmt.Errorf("a process ended before its time: %w", err)
	}
	return nil
}

func kill(ctx context.Context, files []*os.File, args []string) error {
	process, err := command(ctx, files, args)
	if err != nil {
		return err
	}
	process.Env = append(os.Environ(), doomed+"=1")
	stdout, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	_, early := bufio.NewReader(stdout).ReadString('\n')
	err = errors.Join(early, process.Process.Kill())
	_ = process.Wait() // it says that it was killed
	if err != nil {
		return fmt.Errorf("the process ended before its moment: %w", err)
	}
	return nil
}

func run(ctx context.Context, files []*os.File, args []string) error {
	process, err := command(ctx, files, args)
	if err != nil {
		return err
	}
	return process.Run()
}

// command returns the process, which ends with ctx, and with this one.
func command(ctx context.Context, files []*os.File, args []string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	_, err := cmd.StdinPipe() // its end tells that we are gone
	return cmd, err
}

// Follow ends this process when the one that started it is gone.
func Follow() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}

// Serve serves on the socket that the process was given by Keep.
func Serve(handler http.Handler) error {
	Follow()
	listener, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	return http.Serve(listener, handler)
}

// Moment is where a process that is to be killed is. Any other goes on.
func Moment() {
	if os.Getenv(doomed) != "" {
		fmt.Println("now")
		select {}
	}
}
