package web

import (
	"embed"
	"fmt"
	"hash/fnv"
	"html/template"
	"strings"
)

//go:embed templates
var templates embed.FS

// page is the content from a loader, and its template.
type page struct {
	title    string
	section  string // of the navigation
	template string
	data     any
	watch    watch
	moment   string // of the ledger; empty: nothing of it is shown
}

// sheet is a page as it was rendered: all of it, and the parts that change by
// themselves.
type sheet struct {
	title  string
	main   template.HTML
	order  []string // ids of the pieces
	pieces map[string]template.HTML
	watch  watch
	moment string
}

// version tells sheets of different content apart.
func (s *sheet) version() string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s.main)) // a hash takes all
	return fmt.Sprintf("%016x", h.Sum64())
}

// canvas is the data of a page's template.
type canvas struct {
	Data any

	set   *template.Template
	sheet *sheet
}

// Piece renders a part of the page that is sent anew when it changes. The
// template's outermost element must have that id.
func (c *canvas) Piece(id, name string, data any) (template.HTML, error) {
	html, err := executed(c.set, name, data)
	c.sheet.order = append(c.sheet.order, id)
	c.sheet.pieces[id] = html
	return html, err
}

func (f *frame) render(p page) (made *sheet, err error) {
	made = &sheet{title: p.title, pieces: map[string]template.HTML{}, watch: p.watch, moment: p.moment}
	if made.main, err = executed(f.set, p.template, &canvas{Data: p.data, set: f.set, sheet: made}); err != nil {
		return nil, fmt.Errorf("rendering %s: %w", p.template, err)
	}
	return made, nil
}

func executed(set *template.Template, name string, data any) (template.HTML, error) {
	var out strings.Builder
	err := set.ExecuteTemplate(&out, name, data)
	return template.HTML(out.String()), err //nolint:gosec // escaped by html/template just now
}
