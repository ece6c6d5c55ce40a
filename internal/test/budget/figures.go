// Package budget measures the size of the product's source, for each room (a folder of the root). Its test fails if
// a room grows by more than 2 % beyond the figures in budget.txt. To allow the growth, the same change must rewrite
// budget.txt (`make budget`), and its commit message must give the reason.
//
// Production code is each Go file that is neither a test nor below internal/test, bench or examples.
package budget

import (
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// Figures holds the sizes of one room (a folder of the root).
type Figures struct {
	Lines      int // lines of production Go
	Characters int // characters of production Go without comments and white space, so that longer lines save nothing
	Types      int // types declared at the top level of production Go
	Exported   int // exported constants, variables, types, functions and methods
	Interfaces int // interface types, which are also counted in Types
	Tests      int // lines of tests and of test machinery
	Lua        int // characters of Lua without comments and white space
}

// Columns returns the names of the fields of Figures, in the order of Values.
func Columns() []string {
	return []string{"lines", "characters", "types", "exported", "interfaces", "tests", "lua"}
}

// Values returns the figures in the order of Columns.
func (f Figures) Values() []int {
	return []int{f.Lines, f.Characters, f.Types, f.Exported, f.Interfaces, f.Tests, f.Lua}
}

// Count returns the figures of each room of the tree at root. A room is a folder of the root. internal/test is a
// room of its own.
func Count(root string) (figuresByRoom map[string]Figures, err error) {
	rooms := map[string]Figures{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if d.IsDir() {
			if slices.Contains([]string{"bin", "bench", "examples", ".git"}, name) {
				return fs.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(name); ext != ".go" && ext != ".lua" {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		figures := rooms[roomOf(name)]
		if err := figures.addFile(name, content); err != nil {
			return err
		}
		rooms[roomOf(name)] = figures
		return nil
	})
	return rooms, err
}

func roomOf(path string) string {
	if strings.HasPrefix(path, "internal/test/") {
		return "internal/test"
	}
	room, _, _ := strings.Cut(path, "/")
	return room
}

func (f *Figures) addFile(name string, content []byte) error {
	lines := strings.Count(string(content), "\n")
	switch {
	case strings.HasSuffix(name, ".lua"):
		f.Lua += luaCharacters(string(content))
		return nil
	case strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "internal/test/"):
		f.Tests += lines
		return nil
	}
	f.Lines += lines
	f.Characters += goCharacters(content)
	tree, err := parser.ParseFile(token.NewFileSet(), name, content, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range tree.Decls {
		f.countDecl(d)
	}
	return nil
}

func (f *Figures) countDecl(d ast.Decl) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		f.countExported(d.Name)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				f.countExported(s.Names...)
			case *ast.TypeSpec:
				f.Types++
				f.countExported(s.Name)
				if _, ok := s.Type.(*ast.InterfaceType); ok {
					f.Interfaces++
				}
			}
		}
	}
}

func (f *Figures) countExported(names ...*ast.Ident) {
	for _, n := range names {
		if n.IsExported() {
			f.Exported++
		}
	}
}

// goCharacters returns the total length of all tokens of a Go file.
func goCharacters(content []byte) (n int) {
	files := token.NewFileSet()
	var s scanner.Scanner
	s.Init(files.AddFile("", -1, len(content)), content, nil, 0)
	for {
		_, tok, text := s.Scan()
		switch {
		case tok == token.EOF:
			return n
		case tok == token.SEMICOLON: // most semicolons are inserted by the scanner
		case text == "":
			n += len(tok.String())
		default:
			n += len(text)
		}
	}
}

// luaCharacters counts the characters of a Lua script outside of comments, without white space. The scripts contain
// neither long strings nor long comments.
func luaCharacters(text string) (n int) {
	for line := range strings.Lines(text) {
		for _, c := range withoutComment(line) {
			if !unicode.IsSpace(c) {
				n++
			}
		}
	}
	return n
}

func withoutComment(line string) string {
	quote := rune(0)
	for i, c := range line {
		switch {
		case quote == 0 && strings.HasPrefix(line[i:], "--"):
			return line[:i]
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case c == quote:
			quote = 0
		}
	}
	return line
}
