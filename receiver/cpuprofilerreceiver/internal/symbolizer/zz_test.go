package symbolizer
import ("testing";"os";"fmt")
func TestZZ(t *testing.T){ o:=openObject(t, os.Getenv("ZZ")); g:=o.golang; fmt.Printf("fd %#x text %#x\n", g.funcdata, g.text)
 addr,_,h,err:=findPCLNTab(g.f,true); fmt.Println(err)
 m,found:=findModule(g.f,addr,h,g.entries[0],g.entries[h.functions]); fmt.Printf("%v %#x\n",found,m)
 for _, addr := range m.gofunc { off,av,ok:=g.f.fileOffset(addr); g.funcdata,g.dataEnd=off,off+av; fmt.Printf("%#x %v %v\n",addr,ok,g.inliningPlausible())
 seen:=0
  for i:=0;i<4096&&seen<40;i++{ f,err:=g.function(i); if err!=nil{fmt.Println(err);break}; if f.inline==noOffset{continue}; seen++; call,ok,err:=g.inlinedCall(&f,0); n,_,_:=g.functionName(f.name);c,_,_:=g.functionName(call.name); if seen<40{fmt.Println(i,n,f.size,call,ok,err,c)}}
 break}
}
