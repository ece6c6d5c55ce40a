package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/fleetslots/dispatcher/internal/test/mutation"
)

// Mistake is one planted mistake: a change of one function that breaks a promise. For a new mistake, only a row in
// one of the files rows_*.go is needed, in the file of the part that makes the promise. The command itself writes caught.txt.
type Mistake struct {
	Package string   // folder of the package, relative to the root of the module
	Func    string   // for Go: "function" or "Type.Method"; for Lua, SQL and templates: the path of the file in Package
	Old     string   // text that must occur exactly once in the function or file; white space matches any white space
	New     string   // the replacement; only `make planted` checks that it compiles
	Breaks  string   // the promise that the change breaks
	Tests   []string // folders of the packages whose tests should catch it, in this order; nil means Package
}

// Mistakes returns all planted mistakes of all tables.
func Mistakes() []Mistake {
	return slices.Concat(storeMistakes(), dispatcherMistakes(), redisMistakes(), devicesMistakes(), operatorsMistakes(), appMistakes())
}

// toEdit returns the edit of a source file that makes the mistake in the tree at root. It returns an error if Old does not occur exactly once.
func (m Mistake) toEdit(root string) (edit mutation.Mistake, err error) {
	file, content, start, end, err := m.findSource(root)
	if err != nil {
		return mutation.Mistake{}, fmt.Errorf("%s %s: %w", m.Package, m.Func, err)
	}
	found := whiteSpacePattern(m.Old).FindAllIndex(content[start:end], -1)
	if len(found) != 1 {
		return mutation.Mistake{}, fmt.Errorf("%s %s: %q occurs %d times, want once", m.Package, m.Func, m.Old, len(found))
	}
	packages := m.Tests
	if packages == nil {
		packages = []string{m.Package}
	}
	return mutation.Mistake{
		Name:     fmt.Sprintf("%s %s: %s", m.Package, m.Func, m.Breaks),
		Edit:     mutation.Edit{File: file, Start: start + found[0][0], End: start + found[0][1], New: m.New},
		Packages: packages,
	}, nil
}

// whiteSpacePattern returns a regular expression that matches text. White space in text matches any white space.
func whiteSpacePattern(text string) *regexp.Regexp {
	words := strings.Fields(text)
	for i, w := range words {
		words[i] = regexp.QuoteMeta(w)
	}
	return regexp.MustCompile(strings.Join(words, `\s+`))
}

// findSource finds the function or the file that the mistake changes. It returns the file, its content, and the
// start and end offsets of the function.
func (m Mistake) findSource(root string) (file string, content []byte, start, end int, err error) {
	if file = filepath.Join(m.Package, m.Func); filepath.Ext(file) != "" {
		if content, err = os.ReadFile(filepath.Join(root, file)); err == nil {
			return file, content, 0, len(content), nil
		}
	}
	files, err := filepath.Glob(filepath.Join(root, m.Package, "*.go"))
	if err != nil {
		return "", nil, 0, 0, err
	}
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		if content, err = os.ReadFile(path); err != nil {
			return "", nil, 0, 0, err
		}
		if start, end, err = funcOffsets(content, m.Func); err != nil {
			return "", nil, 0, 0, err
		}
		if end > 0 {
			file, err = filepath.Rel(root, path)
			return file, content, start, end, err
		}
	}
	return "", nil, 0, 0, errors.New("no such function")
}

// funcOffsets returns the start and end offsets of a function in a Go file. If the file does not contain the
// function, end is 0.
func funcOffsets(content []byte, name string) (start, end int, err error) {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, "", content, parser.SkipObjectResolution)
	if err != nil {
		return 0, 0, err
	}
	for _, d := range tree.Decls {
		if f, ok := d.(*ast.FuncDecl); ok && mutation.FuncName(f) == name {
			return files.Position(f.Pos()).Offset, files.Position(f.End()).Offset, nil
		}
	}
	return 0, 0, nil
}
