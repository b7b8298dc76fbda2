//go:build unix

package servertest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// A client is a database's command line client. It shares no code with the tested code.
type client struct {
	path string
	args []string
	env  []string // complete: the user's settings have no effect
}

// run runs the client with more arguments and returns its output. Its errors have the
// client's own text.
func (c *client) run(args ...string) (string, error) {
	// Not the test's context, because cleanups use it, too.
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.path, append(c.args[:len(c.args):len(c.args)], args...)...)
	cmd.Env = append([]string{"LC_ALL=C", "PATH=/usr/bin:/bin"}, c.env...)
	var out, failure strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &failure
	err := cmd.Run()
	switch {
	case err == nil:
		return out.String(), nil
	case ctx.Err() != nil:
		return "", fmt.Errorf("no answer within %v", waitLimit)
	case failure.Len() > 0:
		return "", errors.New(strings.TrimSpace(failure.String()))
	default:
		return "", err
	}
}
