// Package crash runs processes that are killed (SIGKILL) at the worst moment, and their
// successors: this program, started again with arguments. It is for Unix.
package crash

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

// crashVar is set in the environment of the process that will be killed.
const crashVar = "DIBS_EXAMPLE_CRASH"

// Keep runs a server that is killed at its Point, and then its successor until ctx ends.
// Both run this program with args, which must call Serve, on one socket, as behind a load
// balancer: a client that connects between them waits for the successor. It always
// returns an error.
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

// Kill runs this program with args, and kills it at its Point.
func Kill(ctx context.Context, args ...string) error { return kill(ctx, nil, args) }

// Run runs this program with args until ctx ends. It returns an error only if the program
// ends earlier.
func Run(ctx context.Context, args ...string) error {
	if err := run(ctx, nil, args); ctx.Err() == nil {
		return fmt.Errorf("a process ended too early: %w", err)
	}
	return nil
}

func kill(ctx context.Context, files []*os.File, args []string) error {
	process, err := command(ctx, files, args)
	if err != nil {
		return err
	}
	process.Env = append(os.Environ(), crashVar+"=1")
	stdout, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	_, early := bufio.NewReader(stdout).ReadString('\n')
	err = errors.Join(early, process.Process.Kill())
	_ = process.Wait() // "signal: killed"
	if err != nil {
		return fmt.Errorf("the process ended before its point: %w", err)
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

// command returns a process that ends with ctx and with this process.
func command(ctx context.Context, files []*os.File, args []string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	_, err := cmd.StdinPipe() // it closes when this process ends
	return cmd, err
}

// Follow ends this process when its parent ends.
func Follow() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}

// Serve serves on the socket that Keep gave to this process.
func Serve(handler http.Handler) error {
	Follow()
	listener, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	return http.Serve(listener, handler)
}

// Point stops a process that will be killed. In other processes it does nothing.
func Point() {
	if os.Getenv(crashVar) != "" {
		fmt.Println("now")
		select {}
	}
}
