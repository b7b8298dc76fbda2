//go:build unix

package servertest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// A client is a command line client of a database, as a way to ask the server
// that shares no code with what is tested.
type client struct {
	path string
	args []string
	env  []string // all of it: nothing of the user's own settings counts
}

// run runs the client with more arguments, and returns what it prints. Its
// errors are the text that it prints for them.
func (c *client) run(args ...string) (string, error) {
	// Not the test's context: what cleans up after a test asks too.
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
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
		return "", fmt.Errorf("no answer within %v", answerTime)
	case failure.Len() > 0:
		return "", errors.New(strings.TrimSpace(failure.String()))
	default:
		return "", err
	}
}
