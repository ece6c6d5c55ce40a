// Package mutation measures the strength of the tests. It changes one place in a copy of the source tree, runs
// tests there, and reports which test failed. The packages planted (chosen mistakes) and mutants (random mistakes)
// use this package.
//
// Limits: only the first test that fails is reported. A test that fails by chance also counts as one that caught
// the mistake. Whoever reads the report must decide whether the named test is related to the mistake.
package mutation

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Copy is a copy of the source tree. Changes (Edits) are tried in it, one at a time.
type Copy struct {
	dir string
}

// NewCopy deletes dir and then copies to it the files of the working tree at root that git tracks or would track.
// If dir is the same in each run, Go can reuse its build cache.
func NewCopy(ctx context.Context, root, dir string) (*Copy, error) {
	list := exec.CommandContext(ctx, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	names, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the files of %s: %w", root, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("copying %s: %w", name, err)
		}
	}
	return &Copy{dir: dir}, nil
}

// copyFile copies a file. If the file from does not exist, it does nothing, because git still lists a file that
// was deleted in the working tree.
func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode()&fs.ModePerm)
}

// Edit replaces the bytes from Start to End (exclusive) of File. File is a path relative to the root of the tree.
type Edit struct {
	File       string
	Start, End int
	New        string
}

// Apply returns the content with this edit applied.
func (e Edit) Apply(content []byte) []byte {
	out := make([]byte, 0, len(content)+len(e.New))
	out = append(out, content[:e.Start]...)
	out = append(out, e.New...)
	return append(out, content[e.End:]...)
}

// applyEdit makes an edit in the copy. The returned function undoes it.
func (c *Copy) applyEdit(e Edit) (undo func() error, err error) {
	path := filepath.Join(c.dir, e.File)
	before, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, e.Apply(before), 0o600); err != nil {
		return nil, err
	}
	return func() error { return os.WriteFile(path, before, 0o600) }, nil
}
