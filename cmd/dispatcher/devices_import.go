package main

import (
	"net/http"

	"github.com/spf13/cobra"

	"github.com/fleetslots/dispatcher/operators"
)

func importDevices(o *operator) *cobra.Command {
	var file, format, existing string
	command := &cobra.Command{
		Use: "import -f FILE", Short: "Register the devices of a file, and print their tokens once",
		Long: `Register the devices of a file, up to 100,000, all or none, and print their
tokens as CSV (--output json: a JSON object a line). They are shown this once:

  dispatcher devices import -f devices.csv > tokens.csv

A CSV file begins with a header: device, then the names of tags, and :profile for
the profile. NDJSON has a line as {"id":"ar-7","tags":{"area":"330100"}} for each
device, and "profile" in it.`,
		Args: cobra.NoArgs,
		RunE: o.with(func(s *session, _ []string) error {
			r := operators.Request{Method: http.MethodPost, Path: operators.Path("devices"), Query: operators.Query("existing", existing), Key: newKey(), Accept: operators.TypeCSV}
			if s.json {
				r.Accept = operators.TypeNDJSON
			}
			var err error
			if r.Content, err = contentOf(file, format); err != nil {
				return err
			}
			if err := openFile(&r, file, s.cmd.InOrStdin()); err != nil {
				return err
			}
			r.Once = true // a second answer would have no tokens
			err = s.Copy(s.cmd.Context(), r, s.out)
			if operators.Lost(err) {
				return advisedError{err, "perhaps they were created, and their tokens are lost; new ones for all: dispatcher devices import --existing rotate -f " + file}
			}
			return err
		}),
	}
	command.Flags().StringVarP(&file, "file", "f", "", "devices as CSV or NDJSON; -: standard input")
	command.Flags().StringVar(&format, "format", "", "of the file: csv or ndjson (default: by its name)")
	command.Flags().StringVar(&existing, "existing", "", "devices that exist: refuse (default) the file; skip them; rotate: give them one more token")
	complete(command, "format", "csv", "ndjson")
	complete(command, "existing", "refuse", "skip", "rotate")
	return needed(command, "file")
}
