package race

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/cmd/dibs/internal/stores"
)

// number is what is raced for. Whoever reads finds a number at every moment.
type number interface {
	read(context.Context) (int, error)
	write(context.Context, int) error
	remove(context.Context)
	// tell tells workers where it is.
	tell(*task)
}

// newNumber makes a number: in the store's own database where it can have one,
// else in a file beside the store's, else in one of the system's temporary files.
func newNumber(s *stores.Store) (number, error) {
	if name := dibs.NewToken().ID(); s.Cell(name) != nil {
		return &cell{name, s.Cell(name)}, nil
	}
	f, err := os.CreateTemp(s.Folder(), "dibs-race-*")
	if err != nil {
		return nil, err
	}
	return &file{f.Name()}, f.Close()
}

// file is a number in a file: three digits that are overwritten in place.
type file struct{ path string }

func (f *file) tell(t *task)           { t.File = f.path }
func (f *file) remove(context.Context) { _ = os.Remove(f.path) }

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

func (c *cell) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = c.cell.Remove(ctx)
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
