package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fleetslots/dispatcher/internal/test/mutation"
)

// Kind is a kind of random mistake.
type Kind string

// These are the kinds of random mistakes.
const (
	Negated Kind = "negated condition"  // if c -> if !(c)
	Shifted Kind = "shifted comparison" // < and <= exchanged, > and >= exchanged
	Dropped Kind = "dropped statement"  // a call, an assignment or an increment is removed
	Changed Kind = "changed constant"   // an integer n -> n + 1
	Ignored Kind = "ignored error"      // if err != nil -> if false && err != nil
)

func kinds() []Kind { return []Kind{Negated, Shifted, Dropped, Changed, Ignored} }

// site is one place in the source at which a mistake of one kind can be made.
type site struct {
	kind     Kind
	edit     mutation.Edit
	line     int
	function string // "Type.method" or "function"
	before   string // the text that the edit replaces
}

// String returns the place in the source and the change that is made there.
func (s site) String() string {
	return fmt.Sprintf("%s:%d %s: %s", s.edit.File, s.line, s.function, s.describe())
}

func (s site) describe() string {
	before, after := joinLines(s.before), joinLines(s.edit.New)
	if after == "" {
		return fmt.Sprintf("%s: %s", s.kind, before)
	}
	return fmt.Sprintf("%s: %s -> %s", s.kind, before, after)
}

func joinLines(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if len(text) > 100 {
		return text[:100] + "..."
	}
	return text
}

// findSites returns all sites in the Go files below the folders of root. It leaves out tests and the folders in
// excluded.
func findSites(root string, folders, excluded []string) ([]site, error) {
	var all []site
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			for _, e := range excluded {
				if d.IsDir() && name == e {
					return fs.SkipDir
				}
			}
			if d.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return nil
			}
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			found, err := findSitesInFile(name, content)
			all = append(all, found...)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

func findSitesInFile(name string, content []byte) ([]site, error) {
	files := token.NewFileSet()
	tree, err := parser.ParseFile(files, name, content, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	f := finder{name: name, content: content, files: files}
	for _, d := range tree.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body != nil {
			f.function = mutation.FuncName(fn)
			ast.Inspect(fn.Body, f.visit)
		}
	}
	return f.found, nil
}

type finder struct {
	name     string
	content  []byte
	files    *token.FileSet
	function string
	found    []site
}

func (f *finder) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.IfStmt:
		f.mutateCondition(n.Cond)
	case *ast.BinaryExpr:
		f.mutateComparison(n)
	case *ast.BasicLit:
		f.mutateConstant(n)
	case *ast.BlockStmt:
		f.mutateStatements(n.List)
	case *ast.CaseClause:
		f.mutateStatements(n.Body)
	}
	return true
}

func (f *finder) mutateCondition(c ast.Expr) {
	if b, ok := c.(*ast.BinaryExpr); ok && b.Op == token.NEQ && isIdent(b.X, "err") && isIdent(b.Y, "nil") {
		f.add(Ignored, c, "false && "+f.text(c))
		return
	}
	f.add(Negated, c, "!("+f.text(c)+")")
}

func (f *finder) mutateComparison(b *ast.BinaryExpr) {
	shifted := map[token.Token]string{token.LSS: "<=", token.LEQ: "<", token.GTR: ">=", token.GEQ: ">"}
	if op, ok := shifted[b.Op]; ok {
		f.add(Shifted, b, f.text(b.X)+" "+op+" "+f.text(b.Y))
	}
}

func (f *finder) mutateConstant(l *ast.BasicLit) {
	if n, err := strconv.ParseInt(l.Value, 10, 32); l.Kind == token.INT && err == nil {
		f.add(Changed, l, strconv.FormatInt(n+1, 10))
	}
}

func (f *finder) mutateStatements(list []ast.Stmt) {
	for _, s := range list {
		switch s := s.(type) {
		case *ast.ExprStmt, *ast.IncDecStmt:
			f.add(Dropped, s, "")
		case *ast.AssignStmt:
			if s.Tok != token.DEFINE {
				f.add(Dropped, s, "")
			}
		}
	}
}

func (f *finder) add(kind Kind, changed ast.Node, text string) {
	f.found = append(f.found, site{
		kind: kind, line: f.files.Position(changed.Pos()).Line, function: f.function, before: f.text(changed),
		edit: mutation.Edit{File: f.name, Start: f.offset(changed.Pos()), End: f.offset(changed.End()), New: text},
	})
}

func (f *finder) text(n ast.Node) string {
	return string(f.content[f.offset(n.Pos()):f.offset(n.End())])
}

func (f *finder) offset(position token.Pos) int { return f.files.Position(position).Offset }

func isIdent(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}
