// Copyright The hotprofile Authors
// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// messages returns the log messages in the code of the components. The key is the message,
// and the value is one place in the code where the message occurs.
func messages(t *testing.T) map[string]string {
	t.Helper()
	folders := map[string][]*ast.File{}
	positions := token.NewFileSet()
	for _, tree := range []string{"receiver", "processor", "exporter", "extension", "internal"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, tree), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			if entry.Name() == "testdata" || path == filepath.Join(root, "internal/tools") {
				return filepath.SkipDir
			}
			folders[path] = codeOf(t, path, positions)
			return nil
		}))
	}
	constants := map[string]string{}
	for _, files := range folders {
		constantsOf(files, constants)
	}
	found := map[string]string{}
	for _, files := range folders {
		messagesOfFolder(t, files, positions, constants, found)
	}
	return found
}

// codeOf returns the code in a directory, without tests.
func codeOf(t *testing.T, dir string, positions *token.FileSet) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(positions, path, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
	}
	return files
}

// constantsOf adds the exported string constants of a package to a map. Each key consists
// of the name of the package and the name of the constant.
func constantsOf(files []*ast.File, to map[string]string) {
	for _, file := range files {
		for _, decl := range file.Decls {
			constants, ok := decl.(*ast.GenDecl)
			if !ok || constants.Tok != token.CONST {
				continue
			}
			for _, spec := range constants.Specs {
				spec := spec.(*ast.ValueSpec)
				for i, value := range spec.Values {
					if text, ok := literal(value); ok && spec.Names[i].IsExported() {
						to[file.Name.Name+"."+spec.Names[i].Name] = text
					}
				}
			}
		}
	}
}

func messagesOfFolder(t *testing.T, files []*ast.File, positions *token.FileSet, constants, found map[string]string) {
	t.Helper()
	names := namesOf(files)
	names.constants = constants
	for _, file := range files {
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			arg := names.messageArgument(call)
			if arg == nil {
				return true
			}
			texts := names.texts(arg)
			place := positions.Position(call.Pos()).String()
			assert.NotEmpty(t, texts, "%s: the message of this line cannot be read from the code: make it a constant", place)
			for _, text := range texts {
				found[text] = place
			}
			return true
		})
	}
}

// names contains the names of texts and of loggers' methods in the code of a directory.
// Objects with the same name are treated as one object, so that the search may find too many
// messages, but never too few.
type names struct {
	values  map[string][]ast.Expr // by the name of a constant, a variable or a parameter
	loggers map[string]bool       // the variables that hold a method of a logger
	// constants contains the string constants of other packages.
	constants map[string]string
}

func namesOf(files []*ast.File) names {
	found := names{values: map[string][]ast.Expr{}, loggers: map[string]bool{}}
	parameters := map[string][]string{} // by the name of the function
	assign := func(to, value ast.Expr) {
		name, ok := to.(*ast.Ident)
		if !ok {
			return
		}
		found.values[name.Name] = append(found.values[name.Name], value)
		if method, ok := value.(*ast.SelectorExpr); ok && isLogger(method.X) {
			found.loggers[name.Name] = true
		}
	}
	inspect := func(visit func(ast.Node)) {
		for _, file := range files {
			ast.Inspect(file, func(n ast.Node) bool { visit(n); return true })
		}
	}
	inspect(func(n ast.Node) {
		switch n := n.(type) {
		case *ast.ValueSpec:
			for i, name := range n.Names {
				if i < len(n.Values) {
					assign(name, n.Values[i])
				}
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if len(n.Lhs) == len(n.Rhs) {
					assign(to, n.Rhs[i])
				}
			}
		case *ast.FuncDecl:
			parameters[n.Name.Name] = nil
			for _, field := range n.Type.Params.List {
				for _, name := range field.Names {
					parameters[n.Name.Name] = append(parameters[n.Name.Name], name.Name)
				}
			}
		}
	})
	inspect(func(n ast.Node) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return
		}
		for i, parameter := range parameters[nameOf(call.Fun)] {
			if i < len(call.Args) {
				found.values[parameter] = append(found.values[parameter], call.Args[i])
			}
		}
	})
	return found
}

// texts returns the strings that an expression may evaluate to. If the expression appends to
// a string, texts returns the string followed by "…".
func (n names) texts(e ast.Expr) []string {
	if text, ok := literal(e); ok {
		return []string{text}
	}
	if sum, ok := e.(*ast.BinaryExpr); ok && sum.Op == token.ADD {
		if text, ok := literal(sum.X); ok {
			return []string{text + "…"}
		}
	}
	if selector, ok := e.(*ast.SelectorExpr); ok {
		if text, ok := n.constants[nameOf(selector.X)+"."+selector.Sel.Name]; ok {
			return []string{text}
		}
	}
	var found []string
	if name, ok := e.(*ast.Ident); ok {
		for _, value := range n.values[name.Name] {
			switch value := value.(type) {
			case *ast.BasicLit, *ast.SelectorExpr:
				found = append(found, n.texts(value)...)
			case *ast.Ident:
				if value.Name != name.Name {
					found = append(found, n.texts(value)...)
				}
			}
		}
	}
	return found
}

// messageArgument returns the message of a call of
// a logger. It returns nil for other calls.
func (n names) messageArgument(call *ast.CallExpr) ast.Expr {
	at := 0
	switch fun := call.Fun.(type) {
	case *ast.Ident:
		if !n.loggers[fun.Name] {
			return nil
		}
	case *ast.SelectorExpr:
		if !isLogger(fun.X) {
			return nil
		}
		switch fun.Sel.Name {
		case "Debug", "Info", "Warn", "Error":
		case "Log", "Check":
			at = 1
		default:
			return nil
		}
	default:
		return nil
	}
	if len(call.Args) <= at {
		return nil
	}
	return call.Args[at]
}

func isLogger(e ast.Expr) bool {
	name := strings.ToLower(nameOf(e))
	return name == "log" || name == "logger"
}

// nameOf returns the last part of a name.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func literal(e ast.Expr) (string, bool) {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(lit.Value)
	return text, err == nil
}

var (
	// firstCell matches the first cell of a table row. The cell
	// contains one or more messages.
	firstCell = regexp.MustCompile("(?m)^\\| (`.+?`) \\|")
	codeSpan  = regexp.MustCompile("`([^`]+)`")
)

func TestTroubleshootingHasEveryLogMessageAndNoOther(t *testing.T) {
	inCode := messages(t)
	require.Contains(t, inCode, "gate opened")
	require.Greater(t, len(inCode), 60)
	onPage := map[string]bool{}
	for _, row := range firstCell.FindAllStringSubmatch(pages(t)["docs/troubleshooting.md"], -1) {
		for _, message := range codeSpan.FindAllStringSubmatch(row[1], -1) {
			assert.False(t, onPage[message[1]], "docs/troubleshooting.md explains %q twice", message[1])
			onPage[message[1]] = true
		}
	}
	for message, place := range inCode {
		assert.True(t, onPage[message], "docs/troubleshooting.md says nothing of %q, of %s", message, place)
	}
	for message := range onPage {
		assert.Contains(t, inCode, message, "docs/troubleshooting.md explains a message that is none")
	}
}
