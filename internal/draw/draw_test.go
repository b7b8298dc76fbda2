package draw_test

import (
	"path/filepath"
	"testing"

	"github.com/dibs-go/dibs/internal/draw"
	"github.com/dibs-go/dibs/internal/testkit"
)

const root = "../.."

// TestPictures: each picture of a page is what is drawn from that page, and there are no others.
// "make pictures" draws them again.
func TestPictures(t *testing.T) {
	all, err := draw.All(root)
	testkit.Must(t, err)
	if len(all) < 5 {
		t.Errorf("the pages have only %d pictures", len(all))
	}
	for name, want := range all {
		if string(testkit.ReadFile(t, filepath.Join(root, name))) != want {
			t.Errorf("%s is not what its page says; run make pictures", name)
		}
	}
	files, err := filepath.Glob(root + "/docs/pictures/*.svg")
	testkit.Must(t, err)
	if len(files) != len(all) {
		t.Errorf("docs/pictures has %d SVGs; the pages show %d", len(files), len(all))
	}
}
