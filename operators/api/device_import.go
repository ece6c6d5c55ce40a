package api

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/fleetslots/dispatcher/devices"
	"github.com/fleetslots/dispatcher/dispatcher/credentials"
	"github.com/fleetslots/dispatcher/operators"
	"github.com/fleetslots/dispatcher/store"
)

const (
	maxImportBody    = 16 << 20 // in bytes
	maxImportDevices = 100_000  // devices in one import; they and their tokens are held in memory
	maxImports       = 3        // concurrent imports, at most one of each operator token; additional imports wait
)

// handleImport handles an import, whose body is a list of devices, before huma would read the body.
func (d *deviceOperations) handleImport(ctx huma.Context, next func(huma.Context)) error {
	contentType := bodyStreamType(ctx)
	if contentType == "" {
		next(ctx)
		return nil
	}
	list, tokens, err := d.importDevices(ctx, contentType)
	if err != nil {
		return err
	}
	form := acceptedStreamType(ctx.Header("Accept"))
	if form != operators.TypeCSV && form != operators.TypeNDJSON {
		form = contentType
	}
	ctx.SetHeader("Content-Type", form)
	ctx.SetStatus(http.StatusCreated)
	writeTokens(ctx, form, list, tokens)
	return nil
}

// importDevices registers the devices in the body, in the media type contentType, and returns them with their tokens. A token is empty for
// a device that got none. It reads all lines before it calls the ledger, so that a slow client keeps no transaction open.
func (d *deviceOperations) importDevices(ctx huma.Context, contentType string) (imported []store.NewDevice, tokens []string, err error) {
	url := ctx.URL()
	existing, err := parseOnExisting(url.Query())
	if err != nil {
		return nil, nil, err
	}
	leave, err := startWhenFree(ctx.Context(), d.imports)
	if err != nil {
		return nil, nil, fmt.Errorf("waiting for other imports: %w", err)
	}
	defer leave()
	body := d.bodyLimits.newBodyReader(ctx, maxImportBody)
	list, lines, err := readDevices(body, contentType)
	if err != nil {
		return nil, nil, body.requestError(err)
	}
	tokens, err = d.credentials.ImportDevices(ctx.Context(), operatorName(ctx.Context()), list, existing, defaultOverlap)
	var bad *store.EntryError
	switch {
	case errors.As(err, &bad) && errors.Is(err, credentials.ErrOnePassword):
		return nil, nil, newProblem(http.StatusConflict, codeOneByOne, fmt.Sprintf(
			"line %d: %s, and its account at the MQTT broker has one password: rotate the tokens of such devices one by one; existing=skip imports the others", lines[bad.Entry], bad))
	case errors.As(err, &bad) && errors.Is(err, store.ErrExists):
		return nil, nil, entryProblem(linePlace, lines[bad.Entry], fmt.Errorf(
			"%w; existing=skip leaves such devices as they are, existing=update changes their tags, existing=rotate gives them one more token", bad))
	case errors.As(err, &bad):
		return nil, nil, entryProblem(linePlace, lines[bad.Entry], bad)
	}
	return list, tokens, err
}

// parseOnExisting returns what an import does with devices that exist already. It reads the parameter `existing` of query.
func parseOnExisting(query url.Values) (store.OnExisting, error) {
	for name := range query {
		if name != "existing" {
			return "", newProblem(http.StatusBadRequest, codeUnknownField, "query."+name+": no such field")
		}
	}
	switch existing := store.OnExisting(query.Get("existing")); existing {
	case "":
		return store.RefuseExisting, nil
	case store.RefuseExisting, store.SkipExisting, store.RotateExisting, store.UpdateExisting:
		return existing, nil
	}
	return "", invalidProblem("existing: must be refuse, skip, update or rotate")
}

// deviceCSVFormat returns the format of devices as CSV, with a column for each tag. The column :profile is never a tag, because tag names
// have no colon.
func deviceCSVFormat() csvFormat[operators.NewDevice] {
	return csvFormat[operators.NewDevice]{
		members: "tags", textOnly: true,
		newEntry: func(id string) operators.NewDevice { return operators.NewDevice{ID: id} },
		fields: map[string]func(*operators.NewDevice, string) error{":profile": func(d *operators.NewDevice, cell string) error {
			d.Profile = cell
			return nil
		}},
		setMembers: func(d *operators.NewDevice, object json.RawMessage) error { return json.Unmarshal(object, &d.Tags) },
	}
}

// readDevices reads all devices of body, which has the media type contentType. lines has the line number of each device.
func readDevices(body io.Reader, contentType string) (list []store.NewDevice, lines []int, err error) {
	seen := map[string]int{}
	for l := range readLines(body, contentType, "id, tags and profile", deviceCSVFormat()) {
		err := l.err
		switch {
		case errors.Is(err, io.EOF) && len(list) > 0:
			return list, lines, nil
		case errors.Is(err, io.EOF):
			err = errors.New("no devices")
		case err == nil && len(list) == maxImportDevices:
			err = fmt.Errorf("at most %d devices in an import", maxImportDevices)
		}
		var device store.NewDevice
		if err == nil {
			device, err = checkDevice(l.value, seen, l.position)
		}
		if err != nil {
			return nil, nil, entryProblem(linePlace, l.position, err)
		}
		list, lines = append(list, device), append(lines, l.position)
	}
	return list, lines, nil
}

// checkDevice checks one entry of an import, and returns an error if an earlier line has the same id. firstLines has the line of each id
// so far. line is the line of this entry.
func checkDevice(entry operators.NewDevice, firstLines map[string]int, line int) (store.NewDevice, error) {
	if _, err := devices.ParseID(entry.ID); err != nil {
		return store.NewDevice{}, err
	}
	if err := checkTags(entry.Tags); err != nil {
		return store.NewDevice{}, err
	}
	if first, twice := firstLines[entry.ID]; twice {
		return store.NewDevice{}, fmt.Errorf("device %s: already in line %d", entry.ID, first)
	}
	firstLines[entry.ID] = line
	device := store.NewDevice{ID: entry.ID, Profile: entry.Profile, Update: changeImportedDevice}
	if len(entry.Tags) == 0 {
		return device, nil
	}
	tags, err := json.Marshal(entry.Tags)
	device.Tags = tags
	return device, err
}

// writeTokens writes the response to an import: one line with the id and the token of each imported device. mediaType is the format, CSV or
// NDJSON.
func writeTokens(ctx huma.Context, mediaType string, imported []store.NewDevice, tokens []string) {
	_, w := humago.Unwrap(ctx)
	connection := http.NewResponseController(w)
	out := bufio.NewWriter(ctx.BodyWriter())
	format := `{"id":"%s","token":"%s"}` + "\n" // no id and no token has a character that JSON or CSV must escape
	if mediaType == operators.TypeCSV {
		format = "%s,%s\n"
		_, _ = out.WriteString("device,token\n")
	}
	for i, d := range imported {
		if i%exportPageSize == 0 {
			_ = connection.SetWriteDeadline(time.Now().Add(exportPageTimeout)) // the ResponseWriter of a test has no deadlines
		}
		if _, err := fmt.Fprintf(out, format, d.ID, tokens[i]); err != nil { // fails only if the client has disconnected
			return
		}
	}
	_ = out.Flush()
}

// describeImport adds the CSV and NDJSON bodies of an import to the documentation of the operation that creates one device.
func describeImport(op *huma.Operation) {
	op.RequestBody = &huma.RequestBody{Content: map[string]*huma.MediaType{operators.TypeCSV: plainTextMediaType(), operators.TypeNDJSON: plainTextMediaType()}}
	op.Responses = map[string]*huma.Response{"201": {Content: map[string]*huma.MediaType{
		"application/json": {}, operators.TypeCSV: plainTextMediaType(), operators.TypeNDJSON: plainTextMediaType(),
	}}}
	op.Parameters = append(op.Parameters, &huma.Param{
		Name: "existing", In: "query",
		Schema:      &huma.Schema{Type: huma.TypeString, Enum: []any{"refuse", "skip", "update", "rotate"}, Default: "refuse"},
		Description: "With " + operators.TypeCSV + " and " + operators.TypeNDJSON + " only: devices that exist are refused, left as they are, changed, or given one more token",
	})
}
