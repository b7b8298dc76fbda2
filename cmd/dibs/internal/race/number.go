package race

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/stores"
)

// number is what is raced for. Whoever reads finds a number at every moment.
type number interface {
	read(context.Context) (int, error)
	write(context.Context, int) error
	// remove leaves nothing behind, also when the context has ended.
	remove(context.Context) error
	// close lets go of it, and leaves it to the others.
	close()
	// tell tells workers where it is.
	tell(*task)
}

// removeLimit bounds how long remove takes.
const removeLimit = 5 * time.Second

// newNumber makes a number: a row in the store's own database where it can have
// one, or another text there, else in a file beside the store's, else in one of
// the system's temporary files. why says why it is not where it could be, or "".
func newNumber(ctx context.Context, s *stores.Store) (n number, why string, err error) {
	name := dibs.NewToken().ID()
	if s.Cell(name) != nil {
		return &cell{name, s.Cell(name)}, "", nil
	}
	r, err := openRow(s, name)
	switch {
	case err != nil:
		return nil, "", err
	case r != nil:
		if err = r.make(ctx); err == nil {
			return r, "", nil
		}
		_ = r.remove(ctx) // of which nothing may be there
		r.close()
		if ctx.Err() != nil {
			return nil, "", context.Cause(ctx)
		}
		why = fmt.Sprintf("The number is in a file, because the table for it could not be made: %v.", err)
	}
	f, err := os.CreateTemp(s.Folder(), "dibs-race-*")
	if err != nil {
		return nil, "", err
	}
	return &file{f.Name()}, why, f.Close()
}

// at finds the number that a task names.
func (t *task) at(s *stores.Store) (number, error) {
	switch {
	case t.Row != "":
		r, err := openRow(s, t.Row)
		if r == nil && err == nil {
			err = fmt.Errorf("%s has no rows", s)
		}
		return r, err
	case t.Cell != "":
		return &cell{t.Cell, s.Cell(t.Cell)}, nil
	}
	return &file{t.File}, nil
}

// file is a number in a file: three digits that are overwritten in place.
type file struct{ path string }

func (f *file) tell(t *task)                 { t.File = f.path }
func (f *file) close()                       {}
func (f *file) remove(context.Context) error { return os.Remove(f.path) }

func (f *file) read(context.Context) (n int, err error) {
	text, err := os.ReadFile(f.path)
	if err == nil {
		_, err = fmt.Sscanf(string(text), "%d", &n)
	}
	return n, err
}

func (f *file) write(_ context.Context, n int) error {
	open, err := os.OpenFile(f.path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(open, "%03d\n", n)
	return errors.Join(err, open.Close())
}

// cell is a number in the store's database.
type cell struct {
	name string
	cell stores.Cell
}

func (c *cell) tell(t *task) { t.Cell = c.name }
func (c *cell) close()       {}

func (c *cell) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeLimit)
	defer cancel()
	return c.cell.Remove(ctx)
}

func (c *cell) read(ctx context.Context) (n int, err error) {
	text, err := c.cell.Read(ctx)
	if err == nil {
		_, err = fmt.Sscanf(text, "%d", &n)
	}
	return n, err
}

func (c *cell) write(ctx context.Context, n int) error {
	return c.cell.Write(ctx, fmt.Sprintf("%03d", n))
}
