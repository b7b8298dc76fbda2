// Package crash runs this program again as a process that is killed (SIGKILL) at a chosen
// point, and then as the process that takes its place. It needs Unix.
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

// crashes is set in the environment of the process that will be killed.
const crashes = "DIBS_EXAMPLE_CRASHES"

// Restart runs a server that is killed at its Point, and then a second server until ctx
// ends. Both run this program with args, which must call Serve, on one socket, as behind a
// load balancer: a client that connects between the two waits for the second. It always
// returns an error.
func Restart(ctx context.Context, listener *net.TCPListener, args ...string) error {
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

// Run runs this program with args until ctx ends. It returns an error only if the
// program ended before.
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
	process.Env = append(os.Environ(), crashes+"=1")
	stdout, err := process.StdoutPipe()
	if err != nil {
		return err
	}
	if err := process.Start(); err != nil {
		return err
	}
	_, early := bufio.NewReader(stdout).ReadString('\n')
	err = errors.Join(early, process.Process.Kill())
	_ = process.Wait() // its error says that it was killed
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

// command returns the process, which ends with ctx, and with this one.
func command(ctx context.Context, files []*os.File, args []string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	_, err := cmd.StdinPipe() // its end tells the process that this one has ended
	return cmd, err
}

// Follow ends this process when the process that started it has ended.
func Follow() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}

// Serve serves on the socket of Restart.
func Serve(handler http.Handler) error {
	Follow()
	listener, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	return http.Serve(listener, handler)
}

// Point is where a process is killed. The process that takes its place continues.
func Point() {
	if os.Getenv(crashes) != "" {
		fmt.Println("now")
		select {}
	}
}
