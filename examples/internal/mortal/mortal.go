// Package mortal has a server that is killed (SIGKILL) at the worst moment, and the
// one that takes its place. Both are processes of their own, on one socket, as behind
// a load balancer: who connects while there is no server waits for the next. It is for
// Unix.
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

// doomed is set in the environment of the server that is to be killed.
const doomed = "DIBS_EXAMPLE_DOOMED"

// Keep runs this program with args, which is to call Serve, kills it when it has come
// to the Moment, and runs it again until ctx ends. It always returns an error.
func Keep(ctx context.Context, listener *net.TCPListener, args ...string) error {
	socket, err := listener.File()
	if err != nil {
		return err
	}
	defer socket.Close()

	first, err := server(ctx, socket, args)
	if err != nil {
		return err
	}
	first.Env = append(os.Environ(), doomed+"=1")
	stdout, err := first.StdoutPipe()
	if err != nil {
		return err
	}
	if err := first.Start(); err != nil {
		return err
	}
	_, early := bufio.NewReader(stdout).ReadString('\n')
	err = errors.Join(early, first.Process.Kill())
	_ = first.Wait() // it says that it was killed
	if err != nil {
		return fmt.Errorf("the server ended before its moment: %w", err)
	}

	second, err := server(ctx, socket, args)
	if err != nil {
		return err
	}
	return second.Run()
}

// server returns the process, which ends with ctx, and with this one.
func server(ctx context.Context, socket *os.File, args []string) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{socket}, os.Stderr
	_, err := cmd.StdinPipe() // its end tells that we are gone
	return cmd, err
}

// Serve serves on the socket that the process was given by Keep.
func Serve(handler http.Handler) error {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	listener, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	return http.Serve(listener, handler)
}

// Moment is where the first server is killed. In the second one it does nothing.
func Moment() {
	if os.Getenv(doomed) != "" {
		fmt.Println("now")
		select {}
	}
}
